#include "evidence.h"

#include <algorithm>
#include <cmath>

namespace suffixsvc {

namespace {

constexpr std::uint32_t kNoFeature = 0xFFFFFFFFu;
constexpr std::uint32_t kMinMatch = 5;   // match models follow contexts at least this long
constexpr std::size_t kScanned = 24;     // of a wide node's edges the first ones are looked at ...
constexpr std::size_t kScannedLast = 4;  // ... and the newest ones
constexpr std::size_t kNodesPerSlot = 5;

struct Place {
    const Index* index;
    NodeId id;
};

// One order of one source, over all indexes of that source.
struct Slot {
    std::uint32_t match_len = 0;
    std::uint32_t total = 0;
    std::size_t places = 0;
    std::array<Place, kNodesPerSlot> at;
};

using Slots = std::array<Slot, kSources * kOrderCount>;

struct Match {
    Token token = -1;
    std::uint32_t len = 0;
};

int order_of(std::uint32_t len) {
    int k = -1;
    while (k + 1 < kOrderCount && kOrders[k + 1] <= static_cast<int>(len)) ++k;
    return k;
}

// Occurrences of an edge's target that count as evidence of `source`.
std::uint32_t votes_of(const Index& index, NodeId to, int source, std::uint32_t writer) {
    const NodeView n = index.node(to);
    if (n.count <= 0 || (source == 1 && n.writer == writer)) return 0;
    return static_cast<std::uint32_t>(n.count);
}

Token last_follower(const Index& index, NodeId id, int source, std::uint32_t writer) {
    const Token recent = index.node(id).recent;
    if (recent >= 0) {
        const NodeId to = index.next(id, recent);
        if (to != kNoNode && votes_of(index, to, source, writer) > 0) return recent;
    }
    const auto out = index.edges(id);
    for (std::size_t i = out.size(), seen = 0; i-- > 0 && seen < kScannedLast; ++seen)
        if (votes_of(index, out[i].to, source, writer) > 0) return out[i].token;
    return -1;
}

void walk(const Index& index, Cursor cursor, int source, std::uint32_t writer, Slots& slots, Match& match,
          std::uint32_t& longest) {
    NodeId id = cursor.node;
    std::uint32_t high = cursor.len;
    while (id != kRoot) {
        const NodeView n = index.node(id);
        const std::uint32_t low = index.node(n.link).len + 1;
        if (n.fanout > 0 && high >= low && (source == 0 || n.writer != writer)) {
            if (high >= kMinMatch && high > match.len) {
                const Token token = last_follower(index, id, source, writer);
                if (token >= 0) match = Match{token, high};
            }
            longest = std::max(longest, high);
            const int k = order_of(high);
            if (k >= 0 && kOrders[k] >= static_cast<int>(low)) {
                Slot& slot = slots[static_cast<std::size_t>(source * kOrderCount + k)];
                if (slot.places < kNodesPerSlot) {
                    slot.at[slot.places++] = Place{&index, id};
                    slot.match_len = std::max(slot.match_len, high);
                }
            }
        }
        high = low - 1;
        id = n.link;
    }
}

struct Vote {
    Token token;
    std::uint32_t votes;
};

// Sums the votes of a slot, and names its `width` strongest tokens; ties go to the newer edge.
std::size_t strongest(Slot& slot, int source, std::uint32_t writer, int width, std::array<Vote, 4>& top) {
    std::array<Vote, kNodesPerSlot*(kScanned + kScannedLast)> all;
    std::size_t count = 0;
    for (std::size_t p = 0; p < slot.places; ++p) {
        const Index& index = *slot.at[p].index;
        const auto out = index.edges(slot.at[p].id);
        std::uint32_t seen = 0;
        const bool wide = out.size() > kScanned + kScannedLast;
        for (std::size_t i = 0; i < out.size(); ++i) {
            if (wide && i == kScanned) i = out.size() - kScannedLast;
            const std::uint32_t v = votes_of(index, out[i].to, source, writer);
            if (v == 0) continue;
            seen += v;
            std::size_t j = 0;
            if (p > 0)
                while (j < count && all[j].token != out[i].token) ++j;
            else
                j = count;
            if (j == count)
                all[count++] = Vote{out[i].token, v};
            else
                all[j].votes += v;
        }
        // Unseen edges of a wide node: its own count stands in for theirs.
        if (wide)
            seen = std::max(seen, static_cast<std::uint32_t>(std::max(0, index.node(slot.at[p].id).count)));
        slot.total += seen;
    }
    std::size_t kept = 0;
    for (std::size_t i = 0; i < count; ++i) {
        std::size_t j = kept;
        while (j > 0 && top[j - 1].votes <= all[i].votes) --j;
        if (j >= static_cast<std::size_t>(width)) continue;
        kept = std::min(kept + 1, static_cast<std::size_t>(width));
        for (std::size_t m = kept - 1; m > j; --m) top[m] = top[m - 1];
        top[j] = all[i];
    }
    return kept;
}

std::uint32_t votes_for(const Slot& slot, Token token, int source, std::uint32_t writer) {
    std::uint32_t votes = 0;
    for (std::size_t p = 0; p < slot.places; ++p) {
        const NodeId to = slot.at[p].index->next(slot.at[p].id, token);
        if (to != kNoNode) votes += votes_of(*slot.at[p].index, to, source, writer);
    }
    return votes;
}

void propose(Evidence& out, Token token) {
    for (const Candidate& c : out.candidates)
        if (c.token == token) return;
    out.candidates.emplace_back();
    out.candidates.back().token = token;
}

}  // namespace

void collect(const Sources& sources, const View& view, const Learner& learner, int width, Evidence& out) {
    out.candidates.clear();
    out.match_len = 0;
    Slots slots;
    std::array<Match, kSources> match;
    for (std::size_t i = 0; i < sources.indexes.size(); ++i) {
        const int source = i == 0 ? 0 : 1;
        walk(*sources.indexes[i], view.cursors[i], source, sources.writer, slots,
             match[static_cast<std::size_t>(source)], out.match_len);
    }
    std::array<int, kSources> deepest{-1, -1};
    for (int s = 0; s < kSources; ++s)
        for (int k = 0; k < kOrderCount; ++k) {
            Slot& slot = slots[static_cast<std::size_t>(s * kOrderCount + k)];
            if (slot.places == 0) continue;
            std::array<Vote, 4> top;
            const std::size_t n = strongest(slot, s, sources.writer, std::min(width, 4), top);
            if (slot.total == 0) {
                slot.places = 0;
                continue;
            }
            deepest[static_cast<std::size_t>(s)] = k;
            for (std::size_t i = 0; i < n; ++i) propose(out, top[i].token);
        }
    for (std::size_t s = 0; s < kSources; ++s) {
        out.match[s] = match[s].token;
        if (match[s].token >= 0) {
            // Contexts end at max_context; a copy goes on.
            if (match[s].len >= sources.indexes[0]->max_context()) match[s].len += view.run[s];
            out.match_len = std::max(out.match_len, match[s].len);
            propose(out, match[s].token);
        }
    }
    out.mixer = Learner::mixer_key(deepest[0], deepest[1], match[0].token >= 0, match[1].token >= 0);
    for (Candidate& c : out.candidates) {
        c.inputs.fill(0.f);
        c.features.fill(kNoFeature);
        c.inputs[kBias] = kBiasInput;
        c.source = 0;
        c.match_len = 0;
        for (int s = 0; s < kSources; ++s)
            for (int k = 0; k < kOrderCount; ++k) {
                const auto i = static_cast<std::size_t>(s * kOrderCount + k);
                const Slot& slot = slots[i];
                if (slot.places == 0) continue;
                const std::uint32_t votes = votes_for(slot, c.token, s, sources.writer);
                const auto total = static_cast<float>(slot.total);
                const float prior = votes > 0 ? static_cast<float>(votes) / (total + 0.7f) * 0.85f
                                              : 0.05f / (1.f + std::sqrt(total));
                c.features[i] = Learner::context_feature(s, k, votes, slot.total);
                c.inputs[i] = stretch(learner.estimate(c.features[i], prior));
                if (votes > 0 && slot.match_len > c.match_len) {
                    c.match_len = slot.match_len;
                    c.source = static_cast<std::uint8_t>(s);
                }
            }
        for (std::size_t s = 0; s < kSources; ++s) {
            if (match[s].token < 0) continue;
            const bool agrees = match[s].token == c.token;
            const std::size_t i = kSources * kOrderCount + s;
            c.features[i] = Learner::match_feature(static_cast<int>(s), match[s].len, agrees);
            c.inputs[i] = stretch(learner.estimate(c.features[i], agrees ? (s == 0 ? 0.6f : 0.5f) : 0.03f));
            if (agrees && match[s].len > c.match_len) {
                c.match_len = match[s].len;
                c.source = static_cast<std::uint8_t>(s);
            }
        }
        c.p = learner.mix(out.mixer, c.inputs);
    }
    std::stable_sort(out.candidates.begin(), out.candidates.end(),
                     [](const Candidate& a, const Candidate& b) { return a.p > b.p; });
}

void count_runs(View& view, const std::array<Token, kSources>& match, Token token) {
    for (std::size_t s = 0; s < kSources; ++s) view.run[s] = match[s] == token ? view.run[s] + 1 : 0;
}

void advance(const Sources& sources, View& view, const std::array<Token, kSources>& match, Token token) {
    count_runs(view, match, token);
    for (std::size_t i = 0; i < sources.indexes.size(); ++i)
        sources.indexes[i]->advance(view.cursors[i], token);
}

void learn(Learner& learner, const Evidence& evidence, Token truth) {
    for (const Candidate& c : evidence.candidates) {
        const bool right = c.token == truth;
        learner.learn_mix(evidence.mixer, c.inputs, c.p, right);
        for (std::uint32_t f : c.features)
            if (f != kNoFeature) learner.learn(f, right);
    }
}

}  // namespace suffixsvc
