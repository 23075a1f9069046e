#include "segment/segment_builder.h"

#include <algorithm>
#include <numeric>
#include <unordered_map>

#include "segment/segment_alphabet.h"
#include "segment/segment_hubs.h"
#include "segment/segment_sort.h"

namespace suffixsvc {

namespace {

FileFault invalid(std::string message, std::string expected, std::string got) {
    return {FileFault::Kind::invalid, std::move(message), std::move(expected), std::move(got)};
}

// A distinct text of the input; `age` and `rank` are those of its newest occurrence.
struct DistinctText {
    std::size_t begin;
    std::uint32_t size;
    std::uint32_t context;
    std::uint64_t age;
    std::size_t rank;
};

std::uint64_t hash_of(std::span<const Token> tokens, std::uint32_t context) {
    std::uint64_t h = context + 0x9E3779B97F4A7C15ull;
    for (Token t : tokens) h = (h ^ static_cast<std::uint32_t>(t)) * 0xff51afd7ed558ccdull, h ^= h >> 29;
    return h;
}

FileFault validate(const SegmentInput& in) {
    const std::size_t n = in.lengths.size();
    if (in.contexts.size() != n || in.lsns.size() != n)
        return invalid("lengths, contexts and lsns must have the same size",
                       std::to_string(n) + " contexts and LSNs",
                       std::to_string(in.contexts.size()) + " and " + std::to_string(in.lsns.size()));
    std::uint64_t total = 0;
    for (std::size_t i = 0; i < n; ++i) {
        if (in.lengths[i] <= in.contexts[i] || in.lengths[i] > in.tokens.size())
            return invalid(
                "the length of text " + std::to_string(i) + " must exceed its context and fit the tokens",
                "a length of " + std::to_string(std::uint64_t{in.contexts[i]} + 1) + " .. " +
                    std::to_string(in.tokens.size()),
                std::to_string(in.lengths[i]));
        total += in.lengths[i];
        if (total > in.tokens.size()) break;
    }
    if (total != in.tokens.size())
        return invalid("lengths must add up to the number of tokens", std::to_string(in.tokens.size()),
                       std::to_string(total));
    if (total + n + 1 > kSegmentMaxText)
        return invalid("the positions of a segment must be limited",
                       "at most " + std::to_string(kSegmentMaxText), std::to_string(total + n + 1));
    for (std::size_t i = 0; i < in.tokens.size(); ++i)
        if (in.tokens[i] < 0)
            return invalid("token id at position " + std::to_string(i) + " must not be negative", "",
                           std::to_string(in.tokens[i]));
    return {};
}

// Merges equal texts; the result is ordered by age. Fills the table but for `start`.
std::vector<DistinctText> distinct_texts(const SegmentInput& in, TextTable& table) {
    const std::size_t n = in.lengths.size();
    std::vector<std::size_t> begin(n + 1, 0);
    for (std::size_t i = 0; i < n; ++i) begin[i + 1] = begin[i] + in.lengths[i];
    std::vector<std::size_t> by_age(n);
    std::iota(by_age.begin(), by_age.end(), std::size_t{0});
    std::stable_sort(by_age.begin(), by_age.end(),
                     [&](std::size_t a, std::size_t b) { return in.lsns[a] < in.lsns[b]; });
    std::vector<DistinctText> distinct;
    std::unordered_multimap<std::uint64_t, std::uint32_t> known;
    known.reserve(n);
    for (std::size_t rank = 0; rank < n; ++rank) {
        const std::size_t i = by_age[rank];
        // Context beyond the depth of the sort is never read.
        const std::size_t cut = in.contexts[i] > kSegmentContext ? in.contexts[i] - kSegmentContext : 0;
        const auto text = in.tokens.subspan(begin[i] + cut, in.lengths[i] - cut);
        const auto context = static_cast<std::uint32_t>(in.contexts[i] - cut);
        const std::uint64_t h = hash_of(text, context);
        const auto [first, last] = known.equal_range(h);
        auto same = std::find_if(first, last, [&](const auto& entry) {
            const DistinctText& p = distinct[entry.second];
            return p.context == context && std::ranges::equal(in.tokens.subspan(p.begin, p.size), text);
        });
        std::uint32_t number;
        if (same == last) {
            number = static_cast<std::uint32_t>(distinct.size());
            known.emplace(h, number);
            distinct.push_back({begin[i] + cut, static_cast<std::uint32_t>(text.size()), context, 0, 0});
        } else {
            number = same->second;
        }
        distinct[number].age = in.lsns[i];
        distinct[number].rank = rank;
        table.occ_lsn.push_back(in.lsns[i]);
        table.occ_text.push_back(number);
    }
    std::vector<std::uint32_t> order(distinct.size()), place(distinct.size());
    std::iota(order.begin(), order.end(), 0u);
    std::sort(order.begin(), order.end(),
              [&](std::uint32_t a, std::uint32_t b) { return distinct[a].rank < distinct[b].rank; });
    std::vector<DistinctText> sorted;
    sorted.reserve(distinct.size());
    for (std::uint32_t p : order) {
        place[p] = static_cast<std::uint32_t>(sorted.size());
        sorted.push_back(distinct[p]);
        table.context.push_back(static_cast<std::uint8_t>(distinct[p].context));
        table.age.push_back(distinct[p].age);
    }
    for (std::uint32_t& t : table.occ_text) t = place[t];
    // Within an output, texts are ordered by position.
    for (std::size_t i = 0; i < n;) {
        std::size_t j = i;
        while (j < n && table.occ_lsn[j] == table.occ_lsn[i]) ++j;
        std::sort(table.occ_text.begin() + static_cast<std::ptrdiff_t>(i),
                  table.occ_text.begin() + static_cast<std::ptrdiff_t>(j));
        i = j;
    }
    return sorted;
}

std::uint32_t shared_context(const std::vector<std::uint32_t>& codes, std::uint32_t a, std::uint32_t b) {
    std::uint32_t n = 0;
    while (n < kSegmentContext && codes[a - 1 - n] == codes[b - 1 - n] && codes[a - 1 - n] != 0) ++n;
    return n;
}

}  // namespace

FileFault build_segment(const std::string& path, const SegmentInput& input, const SegmentOptions& options,
                        SegmentJob& job) {
    if (FileFault fault = validate(input)) return fault;
    TextTable texts;
    const std::vector<DistinctText> distinct = distinct_texts(input, texts);
    IdSet set;
    for (const DistinctText& p : distinct)
        for (Token t : input.tokens.subspan(p.begin, p.size)) set.add(t);
    const std::vector<Token> ids = set.sorted();
    const Alphabet alphabet(ids);

    std::vector<std::uint32_t> codes, order, buckets;
    std::size_t positions = 1, counted = 0;
    for (const DistinctText& p : distinct) {
        positions += p.size + 1;
        counted += p.size - p.context;
    }
    codes.reserve(positions);
    order.reserve(counted);
    codes.push_back(0);
    for (const DistinctText& p : distinct) {
        texts.start.push_back(static_cast<std::uint32_t>(codes.size()));
        for (std::uint32_t i = 0; i < p.size; ++i) {
            if (i >= p.context) order.push_back(static_cast<std::uint32_t>(codes.size()));
            codes.push_back(alphabet.code(input.tokens[p.begin + i]));
        }
        codes.push_back(0);
    }
    texts.start.push_back(static_cast<std::uint32_t>(codes.size()));

    SegmentWriter writer;
    if (!sort_contexts(codes, alphabet.size(), kSegmentContext, order, buckets, job)) {
        writer.cancel();
        return writer.fault();
    }
    SegmentHeader header;
    SegmentCounts& counts = header.counts;
    counts.alphabet = alphabet.size();
    counts.code_bytes = code_bytes_for(counts.alphabet);
    counts.text = static_cast<std::uint32_t>(codes.size());
    counts.entries = static_cast<std::uint32_t>(order.size());
    const SegmentLayout layout = layout_of(counts);
    if (!writer.open(path)) return writer.fault();
    {
        ColumnStream text(writer, layout[Column::text].offset);
        for (std::uint32_t c : codes) text.put_code(c, counts.code_bytes);
        text.flush();
    }
    write_column(writer, layout[Column::order].offset, order);
    ColumnStream next(writer, layout[Column::next].offset), lcp(writer, layout[Column::lcp].offset);
    for (std::size_t i = 0; i < order.size(); ++i) {
        if (i + 8 < order.size()) __builtin_prefetch(&codes[order[i + 8] - 1]);
        next.put_code(codes[order[i]], counts.code_bytes);
        lcp.put(static_cast<std::uint8_t>(i == 0 ? 0 : shared_context(codes, order[i - 1], order[i])));
    }
    next.flush();
    lcp.flush();
    job.done.store(0.9, std::memory_order_relaxed);
    codes = {};
    order = {};
    finish_segment(writer, header, ids, buckets, texts, options, job);
    return writer.fault();
}

}  // namespace suffixsvc
