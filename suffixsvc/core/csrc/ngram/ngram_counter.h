// Counts n-grams of texts in bounded memory.
//
//   add ──> windows, unsorted ──(full: sort, count equal ones)──> arena: sorted blocks ──spill──> a run
//
// Not thread-safe. Windows added since the last spill are in memory only.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "base/files/file_fault.h"
#include "ngram/ngram_key.h"

namespace suffixsvc {

class NgramCounter {
  public:
    // Counts n-grams of orders lowest .. highest of ids 0 .. largest_token in about `memory_bytes`. Throws
    // FileFault: invalid, or no_memory.
    static std::unique_ptr<NgramCounter> make(unsigned lowest, unsigned highest, std::int64_t largest_token,
                                              std::size_t memory_bytes);
    virtual ~NgramCounter() = default;

    // Counts concatenated texts: `ends` ascend to the number of tokens, `contexts` are the numbers of leading
    // context tokens. All texts, or none and a FileFault: the ids must be in range, and at most room() many.
    void add(std::span<const Token> tokens, std::span<const std::int64_t> ends,
             std::span<const std::int64_t> contexts);
    // The number of tokens that are guaranteed to fit.
    virtual std::size_t room() const = 0;
    // Tokens added since the last spill, context included.
    virtual std::uint64_t tokens() const = 0;
    // Writes everything as a run, synced, and empties the counter; on a fault nothing is lost and no file
    // is left.
    virtual void spill(const FilePath& path) = 0;

  protected:
    // Followers of n-grams are counted from position `first` on.
    virtual void add_text(std::span<const Token> text, std::size_t first) = 0;

  private:
    std::int64_t largest_token_ = 0;
};

}  // namespace suffixsvc
