// The word memo: random cut tables and texts, compared with words cut one by one; then threads that share a
// memo so small that it is emptied all the time.
#include <cctype>

#include "base/cache/word_memo.h"
#include "common.h"

namespace suffixsvc {

namespace {

std::string random_text(std::mt19937& random, std::size_t max_pieces) {
    static const std::string pieces[] = {"a", "bc",       " ",  "  d", "1",
                                         ".", "\xc3\xa9", "\n", "zz",  std::string(300, 'q')};
    std::string text;
    for (std::size_t n = random() % max_pieces; n > 0; --n) text += pieces[random() % (n % 50 ? 9 : 10)];
    return text;
}

WordCuts random_cuts(std::mt19937& random) {
    WordCuts cuts{};
    const unsigned rare = 1 + random() % 6;
    for (WordCut& cut : cuts) cut = random() % rare ? WordCut::none : static_cast<WordCut>(random() % 3);
    return cuts;
}

std::vector<std::string> words_of(const WordCuts& cuts, const std::string& text) {
    std::vector<std::string> words(text.empty() ? 0 : 1);
    for (std::size_t i = 0; i < text.size(); ++i) {
        if (i > 0 && !((text[i - 1] | text[i]) & 0x80)) {
            const WordCut cut =
                cuts[static_cast<std::size_t>(text[i - 1]) * 128 + static_cast<std::size_t>(text[i])];
            const bool letter = i + 1 < text.size() && std::isalpha(static_cast<unsigned char>(text[i + 1]));
            if (cut == WordCut::here || (cut == WordCut::before_letter && letter)) words.emplace_back();
        }
        words.back() += text[i];
    }
    return words;
}

// Appends the tokens of a fake tokenizer.
void append_tokens(std::string_view word, std::vector<std::int32_t>& to) {
    for (std::size_t i = 0; i < word.size(); i += 3) to.push_back(word[i] + static_cast<int>(word.size()));
}

void learn(WordMemo& memo, std::span<const std::string_view> words) {
    std::vector<std::int32_t> tokens;
    std::vector<std::int64_t> ends;
    for (const std::string_view word : words) {
        append_tokens(word, tokens);
        ends.push_back(static_cast<std::int64_t>(tokens.size()));
    }
    memo.learn(words, tokens, ends);
}

// Encodes a text, skipped spans included; false if other threads empty the memo all the time.
bool encode(WordMemo& memo, const std::string& text, std::vector<std::int32_t>& tokens) {
    for (int tries = 0; tries < 3; ++tries) {
        const WordTokens found = memo.encode(text);
        if (!found.unknown.empty()) {
            learn(memo, found.unknown);
            continue;
        }
        tokens.clear();
        std::int64_t done = 0;
        for (const SkippedSpan& span : found.skipped) {
            tokens.insert(tokens.end(), found.tokens.begin() + done, found.tokens.begin() + span.at);
            append_tokens(std::string_view(text).substr(static_cast<std::size_t>(span.begin),
                                                        static_cast<std::size_t>(span.end - span.begin)),
                          tokens);
            done = span.at;
        }
        tokens.insert(tokens.end(), found.tokens.begin() + done, found.tokens.end());
        return true;
    }
    return false;
}

std::vector<std::int32_t> expected(const WordCuts& cuts, const std::string& text) {
    std::vector<std::int32_t> tokens;
    for (const std::string& word : words_of(cuts, text)) {
        append_tokens(word, tokens);
    }
    return tokens;
}

// Returns the number of texts encoded.
std::size_t work(WordMemo& memo, const WordCuts& cuts, std::uint32_t seed, int texts) {
    std::mt19937 random(seed);
    std::vector<std::int32_t> tokens;
    std::size_t done = 0;
    for (int i = 0; i < texts; ++i) {
        const std::string text = random_text(random, 200);
        if (!encode(memo, text, tokens)) continue;
        if (tokens != expected(cuts, text)) fail("words", "other tokens");
        ++done;
    }
    return done;
}

}  // namespace

void stress_words(const StressArguments& arguments) {
    std::mt19937 random(arguments.seed);
    std::size_t alone = 0;
    std::atomic<std::size_t> together = 0;
    for (int round = 0; round < arguments.rounds / 2; ++round) {
        const WordCuts cuts = random_cuts(random);
        WordMemo memo(cuts, random() % 2 ? 1 << 20 : 1 << 14);
        alone += work(memo, cuts, random(), 40);
        WordMemo shared(cuts, 1 << 15);
        Threads threads;
        for (std::uint32_t t = 0; t < 4; ++t)
            threads.emplace_back([&, s = random() + t] { together += work(shared, cuts, s, 20); });
    }
    require(alone && together, "words: nothing was encoded");
}

}  // namespace suffixsvc
