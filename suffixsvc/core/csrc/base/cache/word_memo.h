// Memoises the tokens of words: text repeats, and looking up a word is about ten times faster than merging
// its bytes again.
//
// The caller defines what a word is, with a table of the positions where a text may be cut so that the
// concatenated tokens of the pieces are the tokens of the text. This file does not depend on any tokenizer.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <shared_mutex>
#include <span>
#include <string_view>
#include <vector>

namespace suffixsvc {

// Whether a text is cut between two ASCII bytes.
enum class WordCut : std::uint8_t { none = 0, here = 1, before_letter = 2 };

// Indexed by a * 128 + b for the bytes a and b; `before_letter` cuts only if an ASCII letter follows b.
using WordCuts = std::array<WordCut, std::size_t{128} * 128>;

// Longer words are not memoised.
inline constexpr std::size_t kMaxWordBytes = 256;

// A span of text, bytes [begin, end), that the tokenizer has to encode: its tokens belong before tokens[at].
struct SkippedSpan {
    std::int64_t at;
    std::int64_t begin;
    std::int64_t end;
};

// The memoised tokens of a text. If `unknown` is not empty, there are no tokens.
struct WordTokens {
    std::vector<std::int32_t> tokens;
    std::vector<SkippedSpan> skipped;
    std::vector<std::string_view> unknown;  // each once, views into the text
};

// Thread-safe.
class WordMemo {
  public:
    // Uses about `memory_bytes`; when it is full, all words are dropped at once.
    WordMemo(const WordCuts& cuts, std::size_t memory_bytes);
    ~WordMemo();
    WordMemo(const WordMemo&) = delete;
    WordMemo& operator=(const WordMemo&) = delete;

    WordTokens encode(std::string_view text) const;

    // The tokens of word i end at ends[i]. Known words and words that are too long are ignored.
    void learn(std::span<const std::string_view> words, std::span<const std::int32_t> tokens,
               std::span<const std::int64_t> ends);

    std::size_t words() const;

  private:
    class Table;

    // End of the word that begins at `at`.
    std::size_t end_of_word(std::string_view text, std::size_t at) const;

    const WordCuts cuts_;
    const std::size_t memory_bytes_;
    mutable std::shared_mutex mutex_;
    std::unique_ptr<Table> table_;
};

}  // namespace suffixsvc
