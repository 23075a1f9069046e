// Counts n-grams of texts in bounded memory.
//
//     add ──> windows, unsorted ──(full: sort, count equal ones)──> arena: sorted stretches ──spill──> a run
//
// One thread at a time. What was added since the last spill is only in memory.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "file_fault.h"
#include "ngram_key.h"

namespace suffixsvc {

class NgramCounter {
  public:
    virtual ~NgramCounter() = default;

    // One text: what follows an n-gram counts from position `first` on. The tokens are in range of the shape,
    // and no more than room().
    virtual void add(std::span<const Token> text, std::size_t first) = 0;
    // How many further tokens fit for sure.
    virtual std::size_t room() const = 0;
    // Tokens added since the last spill, context included.
    virtual std::uint64_t tokens() const = 0;
    // Writes all of it as a run, synced, and is empty then; on a fault nothing is lost and no file is left.
    virtual FileFault spill(const std::string& path) = 0;
};

// Takes about `memory_bytes`; nullptr where that is too little to work with.
std::unique_ptr<NgramCounter> make_ngram_counter(const KeyShape& shape, std::size_t memory_bytes);

}  // namespace suffixsvc
