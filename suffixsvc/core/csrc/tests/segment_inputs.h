// Texts and files shared by the stress tests and the fuzzer.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "segment/segment_builder.h"

namespace suffixsvc {

[[noreturn]] inline void fail(const char* where, const std::string& what) {
    std::fprintf(stderr, "%s: %s\n", where, what.c_str());
    std::exit(1);
}

struct Texts {
    std::vector<Token> tokens;
    std::vector<std::uint64_t> lengths, lsns;
    std::vector<std::uint32_t> contexts;

    void add(const std::vector<Token>& text, std::uint32_t context, std::uint64_t lsn) {
        tokens.insert(tokens.end(), text.begin(), text.end());
        lengths.push_back(text.size());
        contexts.push_back(context);
        lsns.push_back(lsn);
    }
    SegmentInput input() const { return {tokens, lengths, contexts, lsns}; }
};

inline std::vector<Token> adversarial_text(std::mt19937& random, std::size_t max_length) {
    const std::size_t n = 1 + random() % max_length;
    const int kind = static_cast<int>(random() % 6);
    const std::size_t period = 1 + random() % 7;
    std::vector<Token> text;
    for (std::size_t i = 0; i < n; ++i) switch (kind) {
            case 0:
                text.push_back(7);
                break;
            case 1:
                text.push_back(static_cast<Token>(i % period));
                break;
            case 2:
                text.push_back(static_cast<Token>(random() % 2));
                break;
            case 3:
                text.push_back(static_cast<Token>(random() % 100000));
                break;
            case 4:
                text.push_back(static_cast<Token>(random() % 4 ? i % 50 : random() % 50));
                break;
            default:
                text.push_back(random() % 2 ? 0 : 2147483647);
                break;
        }
    return text;
}

// Outputs first .. first + n - 1, some with two texts, some texts in two outputs.
inline Texts adversarial_texts(std::mt19937& random, std::uint64_t first, std::size_t n,
                               std::size_t max_length) {
    Texts texts;
    std::vector<Token> before;
    for (std::uint64_t lsn = first; lsn < first + n; ++lsn) {
        const std::vector<Token> text =
            random() % 5 == 0 && !before.empty() ? before : adversarial_text(random, max_length);
        texts.add(text, static_cast<std::uint32_t>(random() % 3 ? 0 : random() % text.size()), lsn);
        if (random() % 4 == 0) texts.add(adversarial_text(random, 20), 0, lsn);
        before = text;
    }
    return texts;
}

inline void build(const std::string& path, const Texts& texts, std::uint32_t hub_min) {
    SegmentJob job;
    if (const FileFault fault = build_segment(path, texts.input(), {hub_min}, job))
        fail("build", fault.message);
}

inline std::string read_file(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
}

inline void write_file(const std::string& path, const std::string& bytes) {
    std::ofstream(path, std::ios::binary | std::ios::trunc)
        .write(bytes.data(), static_cast<long>(bytes.size()));
}

}  // namespace suffixsvc
