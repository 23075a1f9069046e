// Words of texts and the tokens that a tokenizer made of them, remembered: text repeats, and looking a word
// up is some ten times faster than merging its bytes again.
//
// What a word is the caller says: a table of the places where a text may be cut so that the tokens of the
// pieces, one behind the other, are the tokens of the text. This knows nothing of tokenizers.
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

// How a text is cut between two bytes of ASCII.
enum class WordCut : std::uint8_t { none = 0, here = 1, before_letter = 2 };

// Index a * 128 + b: between the bytes a and b; `before_letter`: if an ASCII letter follows on b.
using WordCuts = std::array<WordCut, std::size_t{128} * 128>;

// A word longer than this is not remembered.
inline constexpr std::size_t kMostWordBytes = 256;

// A stretch of text that is left to the tokenizer: its tokens belong before tokens[at].
struct WordHole {
    std::int64_t at;
    std::int64_t begin;
    std::int64_t end;
};

// What is known of a text. With words in `unknown` there are no tokens.
struct WordTokens {
    std::vector<std::int32_t> tokens;
    std::vector<WordHole> holes;
    std::vector<std::string_view> unknown;  // each once, parts of the text
};

// Safe for threads.
class WordMemo {
  public:
    // About as many bytes are used; what is over that is forgotten, all at once.
    WordMemo(const WordCuts& cuts, std::size_t memory_bytes);
    ~WordMemo();
    WordMemo(const WordMemo&) = delete;
    WordMemo& operator=(const WordMemo&) = delete;

    WordTokens encode(std::string_view text) const;

    // The tokens of word i end at ends[i]; words that are known, or too long, change nothing.
    void learn(std::span<const std::string_view> words, std::span<const std::int32_t> tokens,
               std::span<const std::int64_t> ends);

    std::size_t words() const;

  private:
    class Table;

    // Where the word that begins at `at` ends.
    std::size_t end_of_word(std::string_view text, std::size_t at) const;

    const WordCuts cuts_;
    const std::size_t memory_bytes_;
    mutable std::shared_mutex mutex_;
    std::unique_ptr<Table> table_;
};

}  // namespace suffixsvc
