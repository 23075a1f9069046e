#include "publish/shared_runs.h"

#include <algorithm>
#include <numeric>
#include <string>

#include "publish/suffix_array.h"
#include "segment/format/segment_alphabet.h"

namespace suffixsvc {

namespace {

using Numbers = std::vector<std::uint32_t>;

void validate(const PrincipalTexts& in, std::uint32_t min_principals, std::uint32_t min_length) {
    if (min_principals < 2)
        throw FileFault::invalid("min_principals must be at least 2", "", std::to_string(min_principals));
    if (min_length < 1) throw FileFault::invalid("min_length must be at least 1", "", "0");
    if (in.principals.size() != in.lengths.size())
        throw FileFault::invalid("principals must have one element per text",
                                 std::to_string(in.lengths.size()), std::to_string(in.principals.size()));
    if (in.tokens.size() > kMaxSharedTokens || in.lengths.size() > kMaxSharedTokens)
        throw FileFault::invalid(
            "texts must be limited", "at most " + std::to_string(kMaxSharedTokens) + " tokens and texts",
            std::to_string(in.tokens.size()) + " tokens, " + std::to_string(in.lengths.size()) + " texts");
    std::uint64_t left = in.tokens.size();
    for (const std::uint64_t length : in.lengths) {
        if (length > left) throw FileFault::invalid("lengths must add up to the number of tokens");
        left -= length;
    }
    if (left != 0) throw FileFault::invalid("lengths must add up to the number of tokens");
    for (const std::uint32_t principal : in.principals)
        if (principal >= in.lengths.size())
            throw FileFault::invalid("principals must be below the number of texts", "",
                                     std::to_string(principal));
    for (std::size_t i = 0; i < in.tokens.size(); ++i)
        if (in.tokens[i] < 0)
            throw FileFault::invalid("token id at position " + std::to_string(i) + " must not be negative",
                                     "", std::to_string(in.tokens[i]));
}

// The texts as one string: a separator after each, which has the number of its text as code, then the ids.
class Joined {
  public:
    explicit Joined(const PrincipalTexts& in) : in_(in) {
        IdSet set;
        for (const Token token : in.tokens) set.add(token);
        const std::vector<Token> ids = set.sorted();
        const Alphabet alphabet(ids);
        const auto texts = static_cast<std::uint32_t>(in.lengths.size());
        const std::size_t size = in.tokens.size() + texts;
        codes.reserve(size);
        principal_of.reserve(size);
        std::size_t at = 0;
        for (std::uint32_t text = 0; text < texts; ++text) {
            starts_.push_back(static_cast<std::uint32_t>(codes.size()));
            for (const std::size_t end = at + in.lengths[text]; at < end; ++at)
                codes.push_back(texts - 1 + alphabet.code(in.tokens[at]));
            codes.push_back(text);
            principal_of.resize(codes.size(), in.principals[text]);
            longest = std::max(longest, in.lengths[text]);
        }
    }
    // The token at a position that is no separator.
    Token token(std::uint32_t position) const {
        const auto text = static_cast<std::size_t>(
            std::upper_bound(starts_.begin(), starts_.end(), position) - starts_.begin() - 1);
        return in_.tokens[position - text];  // a separator after each of the texts before it
    }
    // Separators sort before all tokens: the ranks of suffixes that begin with a token.
    std::uint32_t first_rank() const { return static_cast<std::uint32_t>(in_.lengths.size()); }

    Numbers codes, principal_of;
    std::uint64_t longest = 0;

  private:
    const PrincipalTexts& in_;
    Numbers starts_;
};

// By rank: the length of the longest shared string that the suffix begins with.
Numbers shared_lengths(const Joined& text, const SuffixArray& suffixes, std::uint32_t min_principals) {
    const auto end = static_cast<std::uint32_t>(suffixes.order.size());
    const Numbers& lcp = suffixes.lcp;
    Numbers shared(end), seen(text.first_rank());  // seen: suffixes of each principal in the window
    Numbers minima;  // ranks in the window with ascending LCPs, each the minimum of the rest of the window
    minima.reserve(end);
    std::size_t first_minimum = 0;
    std::uint32_t distinct = 0, first = text.first_rank();
    const auto of = [&](std::uint32_t rank) -> std::uint32_t& {
        return seen[text.principal_of[suffixes.order[rank]]];
    };
    for (std::uint32_t last = first; last < end; ++last) {
        if (of(last)++ == 0) ++distinct;
        while (minima.size() > first_minimum && lcp[minima.back()] >= lcp[last]) minima.pop_back();
        minima.push_back(last);
        if (distinct < min_principals) continue;
        // the smallest window that ends here
        while (of(first) > 1 || distinct > min_principals)
            if (--of(first++) == 0) --distinct;
        while (minima[first_minimum] <= first) ++first_minimum;
        shared[first] = std::max(shared[first], lcp[minima[first_minimum]]);
    }
    for (std::uint32_t r = text.first_rank() + 1; r < end; ++r)
        shared[r] = std::max(shared[r], std::min(shared[r - 1], lcp[r]));
    for (std::uint32_t r = end; r-- > text.first_rank() + 1;)
        shared[r - 1] = std::max(shared[r - 1], std::min(shared[r], lcp[r]));
    return shared;
}

struct Run {
    std::uint32_t position;
    std::uint32_t length;
};

// The maximal shared strings, one occurrence of each, in lexicographic order.
std::vector<Run> maximal(const Joined& text, const SuffixArray& suffixes, const Numbers& shared,
                         std::uint32_t min_length) {
    const auto end = static_cast<std::uint32_t>(suffixes.order.size());
    std::vector<Run> out;
    const auto extends_left = [&](std::uint32_t rank) {
        const std::uint32_t position = suffixes.order[rank];
        return position > 0 && shared[suffixes.rank[position - 1]] > shared[rank];
    };
    for (std::uint32_t first = text.first_rank(), next; first < end; first = next) {
        const std::uint32_t length = shared[first];
        bool longer = extends_left(first);
        for (next = first + 1; next < end && shared[next] == length && suffixes.lcp[next] >= length; ++next)
            longer = longer || extends_left(next);
        // A neighbour that begins with the same tokens has a longer shared string: this one is its beginning.
        longer = longer || suffixes.lcp[first] >= length || (next < end && suffixes.lcp[next] >= length);
        if (length >= min_length && !longer) out.push_back({suffixes.order[first], length});
    }
    return out;
}

// Drops the shortest runs until the others are small enough; returns how many.
std::uint64_t drop_shortest(std::vector<Run>& runs) {
    std::uint64_t size = 0;
    for (const Run& run : runs) size += run.length;
    if (size <= kMaxSharedTokens) return 0;
    Numbers by_length(runs.size());
    std::iota(by_length.begin(), by_length.end(), 0u);
    std::ranges::stable_sort(by_length, {}, [&](std::uint32_t i) { return runs[i].length; });
    std::uint64_t dropped = 0;
    for (const std::uint32_t i : by_length) {
        if (size <= kMaxSharedTokens) break;
        size -= runs[i].length;
        runs[i].length = 0;
        ++dropped;
    }
    std::erase_if(runs, [](const Run& run) { return run.length == 0; });
    return dropped;
}

}  // namespace

SharedRuns shared_runs(const PrincipalTexts& texts, std::uint32_t min_principals, std::uint32_t min_length,
                       SegmentJob& job) {
    validate(texts, min_principals, min_length);
    SharedRuns out;
    if (texts.tokens.empty()) return out;
    Joined text(texts);
    const std::size_t depth = text.longest + 1;
    const SuffixArray suffixes = suffix_array(std::move(text.codes), depth, job);
    job.report(0.8);
    std::vector<Run> runs;
    {
        const Numbers shared = shared_lengths(text, suffixes, min_principals);
        job.poll();
        runs = maximal(text, suffixes, shared, min_length);
    }
    out.dropped = drop_shortest(runs);
    for (const Run& run : runs) {
        for (std::uint32_t i = 0; i < run.length; ++i) out.tokens.push_back(text.token(run.position + i));
        out.lengths.push_back(run.length);
    }
    job.report(1.0);
    return out;
}

}  // namespace suffixsvc
