// What the sanitizers run of the memory of words: random tables of cuts and texts, compared with a map; then
// threads that share one with so little memory that each makes the others forget.
//
//   words_stress [seed] [rounds]
#include <atomic>
#include <cctype>
#include <map>
#include <string>
#include <thread>

#include "segment_inputs.h"
#include "word_memo.h"

using namespace suffixsvc;

namespace {

using Words = std::map<std::string, std::vector<std::int32_t>>;

std::string random_text(std::mt19937& random, std::size_t most) {
    static const std::string pieces[] = {"a", "bc",       " ",  "  d", "1",
                                         ".", "\xc3\xa9", "\n", "zz",  std::string(300, 'q')};
    std::string text;
    for (std::size_t n = random() % most; n > 0; --n) text += pieces[random() % (n % 50 ? 9 : 10)];
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

// What a tokenizer would make of a word.
std::vector<std::int32_t> tokens_of(std::string_view word) {
    std::vector<std::int32_t> tokens;
    for (std::size_t i = 0; i < word.size(); i += 3)
        tokens.push_back(word[i] + static_cast<int>(word.size()));
    return tokens;
}

void learn(WordMemo& memo, std::span<const std::string_view> words) {
    std::vector<std::int32_t> tokens;
    std::vector<std::int64_t> ends;
    for (const std::string_view word : words) {
        const auto its = tokens_of(word);
        tokens.insert(tokens.end(), its.begin(), its.end());
        ends.push_back(static_cast<std::int64_t>(tokens.size()));
    }
    memo.learn(words, tokens, ends);
}

// Tokens of a text, holes filled; nothing if others make the memo forget all the time.
bool encode(WordMemo& memo, const std::string& text, std::vector<std::int32_t>& tokens) {
    for (int tries = 0; tries < 3; ++tries) {
        const WordTokens found = memo.encode(text);
        if (!found.unknown.empty()) {
            learn(memo, found.unknown);
            continue;
        }
        tokens.clear();
        std::size_t done = 0;
        for (const WordHole& hole : found.holes) {
            const auto at = static_cast<std::size_t>(hole.at);
            tokens.insert(tokens.end(), found.tokens.begin() + static_cast<std::ptrdiff_t>(done),
                          found.tokens.begin() + hole.at);
            const auto its = tokens_of(std::string_view(text).substr(
                static_cast<std::size_t>(hole.begin), static_cast<std::size_t>(hole.end - hole.begin)));
            tokens.insert(tokens.end(), its.begin(), its.end());
            done = at;
        }
        tokens.insert(tokens.end(), found.tokens.begin() + static_cast<std::ptrdiff_t>(done),
                      found.tokens.end());
        return true;
    }
    return false;
}

std::vector<std::int32_t> expected(const WordCuts& cuts, const std::string& text) {
    std::vector<std::int32_t> tokens;
    for (const std::string& word : words_of(cuts, text)) {
        const auto its = tokens_of(word);
        tokens.insert(tokens.end(), its.begin(), its.end());
    }
    return tokens;
}

// How many texts were encoded.
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

int main(int argc, char** argv) {
    const auto seed = static_cast<std::uint32_t>(argc > 1 ? std::atol(argv[1]) : 1);
    const int rounds = argc > 2 ? std::atoi(argv[2]) : 100;
    std::mt19937 random(seed);
    std::size_t alone = 0;
    std::atomic<std::size_t> together = 0;
    for (int round = 0; round < rounds; ++round) {
        const WordCuts cuts = random_cuts(random);
        WordMemo memo(cuts, random() % 2 ? 1 << 20 : 1 << 14);
        alone += work(memo, cuts, random(), 40);
        WordMemo shared(cuts, 1 << 15);
        std::vector<std::thread> threads;
        for (std::uint32_t t = 0; t < 4; ++t)
            threads.emplace_back([&, s = random() + t] { together += work(shared, cuts, s, 20); });
        for (std::thread& thread : threads) thread.join();
    }
    if (!alone || !together) fail("words", "nothing was encoded");
    std::printf("words_stress: seed %u, %d rounds, %zu texts alone, %zu together: clean\n", seed, rounds,
                alone, together.load());
    return 0;
}
