// Counts n-grams of texts in bounded memory.
//
//   add ──> windows, unsorted ──(full: sort, count equal ones)──> arena: sorted blocks ──spill──> a run
//
// Not thread-safe. Windows added since the last spill are in memory only.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "base/file_fault.h"
#include "ngram/ngram_key.h"

namespace suffixsvc {

class NgramCounter {
  public:
    virtual ~NgramCounter() = default;

    // Adds one text: followers of n-grams are counted from position `first` on. The tokens must be in range
    // of the shape, and at most room() many.
    virtual void add(std::span<const Token> text, std::size_t first) = 0;
    // The number of tokens that are guaranteed to fit.
    virtual std::size_t room() const = 0;
    // Tokens added since the last spill, context included.
    virtual std::uint64_t tokens() const = 0;
    // Writes everything as a run, synced, and empties the counter; on a fault nothing is lost and no file
    // is left.
    virtual FileFault spill(const std::string& path) = 0;
};

// Uses about `memory_bytes`; nullptr if that is too little to work with.
std::unique_ptr<NgramCounter> make_ngram_counter(const KeyShape& shape, std::size_t memory_bytes);

}  // namespace suffixsvc
