#include "segment/build/segment_builder.h"

#include <algorithm>

#include "segment/build/segment_sort.h"
#include "segment/format/segment_alphabet.h"
#include "segment/format/segment_hubs.h"

namespace suffixsvc {

namespace {

void validate(const SegmentInput& in, std::uint32_t hub_min) {
    require_hub_min(hub_min);
    const std::size_t n = in.lengths.size();
    if (in.contexts.size() != n || in.lsns.size() != n)
        throw FileFault::invalid(
            "lengths, contexts and lsns must have the same size", std::to_string(n) + " contexts and LSNs",
            std::to_string(in.contexts.size()) + " and " + std::to_string(in.lsns.size()));
    std::uint64_t total = 0;
    for (std::size_t i = 0; i < n; ++i) {
        if (in.lengths[i] <= in.contexts[i] || in.lengths[i] > in.tokens.size())
            throw FileFault::invalid(
                "the length of text " + std::to_string(i) + " must exceed its context and fit the tokens",
                "a length of " + std::to_string(std::uint64_t{in.contexts[i]} + 1) + " .. " +
                    std::to_string(in.tokens.size()),
                std::to_string(in.lengths[i]));
        total += in.lengths[i];
        if (total > in.tokens.size()) break;
    }
    if (total != in.tokens.size())
        throw FileFault::invalid("lengths must add up to the number of tokens",
                                 std::to_string(in.tokens.size()), std::to_string(total));
    if (total + n + 1 > kSegmentMaxText)
        throw FileFault::invalid("the positions of a segment must be limited",
                                 "at most " + std::to_string(kSegmentMaxText), std::to_string(total + n + 1));
    for (std::size_t i = 0; i < in.tokens.size(); ++i)
        if (in.tokens[i] < 0)
            throw FileFault::invalid("token id at position " + std::to_string(i) + " must not be negative",
                                     "", std::to_string(in.tokens[i]));
}

std::uint32_t shared_context(const std::vector<std::uint32_t>& codes, std::uint32_t a, std::uint32_t b) {
    std::uint32_t n = 0;
    while (n < kSegmentContext && codes[a - 1 - n] == codes[b - 1 - n] && codes[a - 1 - n] != 0) ++n;
    return n;
}

}  // namespace

void build_segment(const FilePath& path, const SegmentInput& input, std::uint32_t hub_min, SegmentJob& job) {
    validate(input, hub_min);
    std::vector<TextCandidate> candidates;
    std::vector<std::size_t> begins;
    std::vector<SegmentOccurrence> occurrences;
    for (std::size_t i = 0, at = 0; i < input.lengths.size(); at += input.lengths[i++]) {
        // Context beyond the depth of the sort is never read.
        const std::uint32_t context = std::min(input.contexts[i], kSegmentContext);
        const std::uint32_t cut = input.contexts[i] - context;
        begins.push_back(at + cut);
        candidates.push_back({input.lsns[i], static_cast<std::uint32_t>(input.lengths[i] - cut),
                              static_cast<std::uint8_t>(context)});
        occurrences.push_back({input.lsns[i], static_cast<std::uint32_t>(i)});
    }
    const auto token_at = [&](std::uint32_t c, std::uint32_t i) { return input.tokens[begins[c] + i]; };
    const TextTable texts(candidates, std::move(occurrences), token_at);
    IdSet set;
    for (const std::uint32_t c : texts.candidates)
        for (Token t : input.tokens.subspan(begins[c], candidates[c].size)) set.add(t);
    const std::vector<Token> ids = set.sorted();
    const Alphabet alphabet(ids);

    std::vector<std::uint32_t> codes, order, buckets;
    codes.reserve(texts.positions);
    order.reserve(texts.entries);
    codes.push_back(0);
    for (const std::uint32_t c : texts.candidates) {
        for (std::uint32_t i = 0; i < candidates[c].size; ++i) {
            if (i >= candidates[c].context) order.push_back(static_cast<std::uint32_t>(codes.size()));
            codes.push_back(alphabet.code(token_at(c, i)));
        }
        codes.push_back(0);
    }
    sort_contexts(codes, alphabet.size(), kSegmentContext, order, buckets, job);

    const SegmentHeader header = header_of(texts, alphabet.size());
    const std::uint32_t width = header.counts.code_bytes;
    const SegmentLayout layout = layout_of(header.counts);
    SegmentWriter writer(path);
    {
        FileStream text = writer.stream(layout[Column::text]);
        for (std::uint32_t c : codes) put_code(text, c, width);
        text.flush();
    }
    writer.write(layout[Column::order], order);
    FileStream next = writer.stream(layout[Column::next]), lcp = writer.stream(layout[Column::lcp]);
    for (std::size_t i = 0; i < order.size(); ++i) {
        if (i + 8 < order.size()) __builtin_prefetch(&codes[order[i + 8] - 1]);
        put_code(next, codes[order[i]], width);
        put_code(lcp, i == 0 ? 0 : shared_context(codes, order[i - 1], order[i]), 1);
    }
    next.flush();
    lcp.flush();
    job.report(0.9);
    codes = {};
    order = {};
    finish_segment(writer, header, ids, buckets, texts, hub_min, job);
}

}  // namespace suffixsvc
