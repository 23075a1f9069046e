#include "publish/suffix_array.h"

#include <algorithm>
#include <numeric>

namespace suffixsvc {

namespace {

using Numbers = std::vector<std::uint32_t>;

// Orders `positions` stably by rank. `ends` is scratch of one element per rank.
void sort_by_rank(const Numbers& positions, const Numbers& rank, Numbers& ends, Numbers& order) {
    std::fill(ends.begin(), ends.end(), 0u);
    for (const std::uint32_t r : rank) ++ends[r];
    std::partial_sum(ends.begin(), ends.end(), ends.begin());
    for (std::size_t i = positions.size(); i-- > 0;) order[--ends[rank[positions[i]]]] = positions[i];
}

Numbers lcps(const Numbers& codes, const Numbers& order, const Numbers& rank) {
    const std::size_t n = codes.size();
    Numbers lcp(n);
    std::size_t shared = 0;
    for (std::size_t at = 0; at < n; ++at) {
        if (rank[at] == 0) {
            shared = 0;
            continue;
        }
        const std::size_t before = order[rank[at] - 1];
        while (std::max(at, before) + shared < n && codes[at + shared] == codes[before + shared]) ++shared;
        lcp[rank[at]] = static_cast<std::uint32_t>(shared);
        if (shared > 0) --shared;
    }
    return lcp;
}

}  // namespace

SuffixArray suffix_array(std::vector<std::uint32_t> codes, std::size_t depth, SegmentJob& job) {
    const std::size_t n = codes.size();
    SuffixArray out{Numbers(n), codes, {}};
    Numbers by_second(n), scratch(n);
    std::iota(by_second.begin(), by_second.end(), 0u);
    sort_by_rank(by_second, out.rank, scratch, out.order);
    // In each round the suffixes are sorted by their first `known` codes, and then by twice as many.
    for (std::size_t known = 1; known < depth; known *= 2) {
        job.poll();
        std::size_t at = 0;
        for (std::size_t i = n - std::min(known, n); i < n; ++i)
            by_second[at++] = static_cast<std::uint32_t>(i);
        for (const std::uint32_t position : out.order)
            if (position >= known) by_second[at++] = static_cast<std::uint32_t>(position - known);
        sort_by_rank(by_second, out.rank, scratch, out.order);
        const auto second = [&](std::uint32_t position) {
            return position + known < n ? std::int64_t{out.rank[position + known]} : -1;
        };
        Numbers& next = by_second;
        std::uint32_t classes = 0;
        for (std::size_t i = 0; i < n; ++i) {
            const std::uint32_t here = out.order[i];
            if (i > 0) {
                const std::uint32_t before = out.order[i - 1];
                if (out.rank[before] != out.rank[here] || second(before) != second(here)) ++classes;
            }
            next[here] = classes;
        }
        out.rank.swap(next);
        if (std::size_t{classes} + 1 >= n) break;
    }
    by_second = {};
    scratch = {};
    for (std::size_t i = 0; i < n; ++i) out.rank[out.order[i]] = static_cast<std::uint32_t>(i);
    job.poll();
    out.lcp = lcps(codes, out.order, out.rank);
    return out;
}

}  // namespace suffixsvc
