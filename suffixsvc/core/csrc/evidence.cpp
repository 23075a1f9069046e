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
constexpr std::uint32_t kRecoverFrom = 12;  // matches this long are followed over a token that differs
constexpr std::uint32_t kRecovered = 16;    // no longer than until a match is this long again
constexpr std::uint32_t kMinRecovery = 3;   // contexts shorter than this are not followed any more
constexpr std::uint8_t kMostMisses = 7;

struct Place {
    const Index* index;
    NodeId id;
};

// One order of one source, over all indexes of that source.
struct Slot {
    std::uint32_t match_len = 0;
    std::uint32_t total = 0;
    Token newest = -1;  // the follower seen last, at the longest context
    std::size_t places = 0;
    std::array<Place, kNodesPerSlot> at;
};

using Slots = std::array<Slot, kSources * kOrderCount>;

struct Match {
    Token token = -1;
    std::uint32_t len = 0;
    std::uint8_t index = Recovery::kNoIndex;
};

int order_of(std::uint32_t len) {
    int k = -1;
    while (k + 1 < kOrderCount && kOrders[k + 1] <= static_cast<int>(len)) ++k;
    return k;
}

// Occurrences of an edge's target that count as evidence of `source`.
std::uint32_t votes_of(const Index& index, NodeId to, int source, std::uint32_t writer) {
    const NodeVotes n = index.votes(to);
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

void walk(const Sources& sources, const View& view, std::size_t number, Slots& slots, Match& match) {
    const Index& index = *sources.indexes[number];
    const Cursor cursor = view.cursors[number];
    const int source = number == 0 ? 0 : 1;
    const std::uint32_t writer = sources.writer;
    NodeId id = cursor.node;
    std::uint32_t high = cursor.len;
    while (id != kRoot) {
        const NodeView n = index.node(id);
        const std::uint32_t low = index.len(n.link) + 1;
        if (n.fanout > 0 && high >= low && (source == 0 || n.writer != writer)) {
            if (high >= kMinMatch && high > match.len) {
                const Token token = last_follower(index, id, source, writer);
                if (token >= 0) match = Match{token, high, static_cast<std::uint8_t>(number)};
            }
            const int k = order_of(high);
            if (k >= 0 && kOrders[k] >= static_cast<int>(low)) {
                Slot& slot = slots[static_cast<std::size_t>(source * kOrderCount + k)];
                if (slot.places == 0) slot.newest = n.recent;
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

// What followed the text that a recovery follows.
Token recovered(const Sources& sources, const Recovery& recovery, int source) {
    if (recovery.index == Recovery::kNoIndex) return -1;
    const Index& index = *sources.indexes[recovery.index];
    std::uint32_t high = recovery.at.len;
    for (NodeId id = recovery.at.node; id != kRoot && high >= kMinRecovery; id = index.node(id).link) {
        const std::uint32_t shorter = index.node(index.node(id).link).len;
        if (high > shorter) {
            const Token token = last_follower(index, id, source, sources.writer);
            if (token >= 0) return token;
            high = shorter;
        }
    }
    return -1;
}

// The contexts that exist and their strongest tokens as candidates; the deepest order by source.
std::array<int, kSources> propose_followers(Slots& slots, std::uint32_t writer, int width, Evidence& out) {
    std::array<int, kSources> deepest{-1, -1};
    for (int s = 0; s < kSources; ++s)
        for (int k = 0; k < kOrderCount; ++k) {
            Slot& slot = slots[static_cast<std::size_t>(s * kOrderCount + k)];
            if (slot.places == 0) continue;
            std::array<Vote, 4> top;
            const std::size_t n = strongest(slot, s, writer, std::min(width, 4), top);
            if (slot.total == 0) {
                slot.places = 0;
                continue;
            }
            deepest[static_cast<std::size_t>(s)] = k;
            for (std::size_t i = 0; i < n; ++i) propose(out, top[i].token);
        }
    return deepest;
}

void use(const Learner& learner, Candidate& c, std::size_t input, std::uint32_t feature, float prior) {
    c.features[input] = feature;
    c.inputs[input] = stretch(learner.estimate(feature, prior));
}

void known_by(Candidate& c, std::uint32_t match_len, int source) {
    if (match_len <= c.match_len) return;
    c.match_len = match_len;
    c.source = static_cast<std::uint8_t>(source);
}

void weigh(const Slots& slots, const Sources& sources, const View& view, const Learner& learner,
           const Evidence& found, Candidate& c) {
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
            use(learner, c, i, Learner::context_feature(s, k, votes, slot.total, slot.newest == c.token),
                prior);
            if (votes > 0) known_by(c, slot.match_len, s);
        }
    for (int s = 0; s < kSources; ++s) {
        const auto source = static_cast<std::size_t>(s);
        const Followed& f = found.followed;
        if (f.match[source] >= 0) {
            const bool agrees = f.match[source] == c.token;
            use(learner, c, kMatchInput + source, Learner::match_feature(s, f.match_len[source], agrees),
                agrees ? (s == 0 ? 0.6f : 0.5f) : 0.03f);
            if (agrees) known_by(c, f.match_len[source], s);
        }
        if (f.recovery[source] >= 0) {
            const Recovery& r = view.recoveries[source];
            const bool agrees = f.recovery[source] == c.token;
            use(learner, c, kRecoveryInput + source, Learner::recovery_feature(s, r.misses, r.hits, agrees),
                agrees ? 0.4f : 0.05f);
        }
    }
    const auto token = static_cast<std::uint32_t>(c.token);
    const std::uint32_t known = (c.match_len >= 3) + (c.match_len >= 8);
    use(learner, c, kTokenInput, Learner::token_feature(0, token * 3u + known), 0.3f);
    use(learner, c, kTokenInput + 1,
        Learner::token_feature(1, token * 2654435761u ^ static_cast<std::uint32_t>(view.last)), 0.3f);
    float sum = 0.f;
    for (std::size_t m = 0; m < kMixers; ++m) {
        c.logits[m] = learner.mix(found.sets[m], c.inputs);
        sum += c.logits[m];
    }
    c.p = squash(sum / kMixers);
}

}  // namespace

void collect(const Sources& sources, const View& view, const Learner& learner, int width, Evidence& out) {
    out.candidates.clear();
    Slots slots;
    std::array<Match, kSources> match;
    for (std::size_t i = 0; i < sources.indexes.size(); ++i)
        walk(sources, view, i, slots, match[i == 0 ? 0 : 1]);
    const std::array<int, kSources> deepest = propose_followers(slots, sources.writer, width, out);
    Followed& f = out.followed;
    for (std::size_t s = 0; s < kSources; ++s) {
        f.match[s] = match[s].token;
        f.match_len[s] = match[s].len;
        f.match_index[s] = match[s].index;
        f.recovery[s] = recovered(sources, view.recoveries[s], static_cast<int>(s));
        if (f.recovery[s] >= 0) propose(out, f.recovery[s]);
        if (f.match[s] < 0) continue;
        // Contexts end at max_context; a copy goes on.
        if (f.match_len[s] >= sources.indexes[0]->max_context()) f.match_len[s] += view.run[s];
        propose(out, f.match[s]);
    }
    const bool both = f.match[0] >= 0 && f.match[1] >= 0;
    out.sets = {Learner::contexts_set(deepest[0], deepest[1], f.match[0] >= 0, f.match[1] >= 0),
                Learner::history_set(view.history, std::max(f.match_len[0], f.match_len[1]),
                                     !both ? 0 : (f.match[0] == f.match[1] ? 1 : 2)),
                Learner::token_set(static_cast<std::uint32_t>(view.last))};
    for (Candidate& c : out.candidates) weigh(slots, sources, view, learner, out, c);
    std::stable_sort(out.candidates.begin(), out.candidates.end(),
                     [](const Candidate& a, const Candidate& b) { return a.p > b.p; });
}

void note(const Sources& sources, View& view, const Followed& f, Token token, bool expected) {
    view.history = view.history << 1 | static_cast<std::uint32_t>(expected);
    view.last = token;
    for (std::size_t s = 0; s < kSources; ++s) {
        view.run[s] = f.match[s] == token ? view.run[s] + 1 : 0;
        Recovery& r = view.recoveries[s];
        if (r.index != Recovery::kNoIndex && f.recovery[s] >= 0) {
            // It goes on in its own text, whatever came instead.
            sources.indexes[r.index]->advance(r.at, f.recovery[s]);
            if (f.recovery[s] == token) {
                r.hits = static_cast<std::uint8_t>(std::min(r.hits + 1, 255));
            } else {
                ++r.misses;
                r.hits = 0;
            }
        }
        const bool again = f.match[s] >= 0 && f.match_len[s] >= kRecovered;
        if (f.recovery[s] < 0 || r.misses > kMostMisses || again) r.index = Recovery::kNoIndex;
        if (r.index != Recovery::kNoIndex || f.match[s] < 0 || f.match[s] == token ||
            f.match_len[s] < kRecoverFrom)
            continue;
        r = Recovery{view.cursors[f.match_index[s]], f.match_index[s], 1, 0};
        sources.indexes[r.index]->advance(r.at, f.match[s]);
    }
}

void advance(const Sources& sources, View& view, const Followed& followed, Token token) {
    note(sources, view, followed, token, true);
    for (std::size_t i = 0; i < sources.indexes.size(); ++i)
        sources.indexes[i]->advance(view.cursors[i], token);
}

void drop_recoveries(View& view) {
    for (Recovery& r : view.recoveries) r.index = Recovery::kNoIndex;
}

void learn(Learner& learner, const Evidence& evidence, Token truth) {
    for (const Candidate& c : evidence.candidates) {
        const bool right = c.token == truth;
        for (std::size_t m = 0; m < kMixers; ++m)
            learner.learn_mix(evidence.sets[m], c.inputs, c.logits[m], right);
        for (std::uint32_t f : c.features)
            if (f != kNoFeature) learner.learn(f, right);
    }
}

}  // namespace suffixsvc
