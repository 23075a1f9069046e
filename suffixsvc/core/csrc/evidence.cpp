#include "evidence.h"

#include <algorithm>
#include <cmath>

#include "sealed.h"
#include "slots.h"

namespace suffixsvc {

namespace {

constexpr std::uint32_t kNoFeature = 0xFFFFFFFFu;
constexpr std::size_t kScanned = 24;        // of a wide node's edges the first ones are looked at ...
constexpr std::size_t kScannedLast = 4;     // ... and the newest ones
constexpr std::size_t kSealedVotes = 64;    // followers in segments of one order that are ranked
constexpr std::uint32_t kRecoverFrom = 12;  // matches this long are followed over a token that differs
constexpr std::uint32_t kRecovered = 16;    // no longer than until a match is this long again
constexpr std::uint32_t kMinRecovery = 3;   // contexts shorter than this are not followed any more
constexpr std::uint8_t kMostMisses = 7;

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

void walk(const Sources& sources, const View& view, std::size_t number, Slots& slots, Match& match) {
    const Index& index = *sources.indexes[number];
    const Cursor cursor = view.cursors[number];
    const int source = number == 0 ? 0 : 1;
    const std::uint32_t writer = sources.writer;
    NodeId id = cursor.node;
    std::uint32_t high = cursor.len;
    while (id != kRoot) {
        const NodeView n = index.node(id);
        const std::uint32_t low = index.node(n.link).len + 1;
        if (n.fanout > 0 && high >= low && (source == 0 || n.writer != writer)) {
            if (high >= kMinMatch && high > match.len) {
                const Token token = last_follower(index, id, source, writer);
                if (token >= 0) match = Match{token, high, static_cast<std::uint8_t>(number), {}};
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

// The same for a namespace that has segments: its slots are filled together with theirs.
void walk_beside(const Sources& sources, const View& view, std::size_t number, Slots& slots, Match& match) {
    const Index& index = *sources.indexes[number];
    const std::uint32_t writer = sources.writer;
    Ladder ladder;
    ladder.index = &index;
    NodeId id = view.cursors[number].node;
    std::uint32_t high = view.cursors[number].len;
    while (id != kRoot) {
        const NodeView n = index.node(id);
        const std::uint32_t low = index.node(n.link).len + 1;
        if (high >= low) {
            const bool followed = n.fanout > 0 && n.writer != writer;
            if (followed && high >= kMinMatch && high > match.len) {
                const Token token = last_follower(index, id, 1, writer);
                if (token >= 0) match = Match{token, high, static_cast<std::uint8_t>(number), {}};
            }
            for (int k = order_of(high); k >= 0 && kOrders[k] >= static_cast<int>(low); --k)
                ladder.steps[static_cast<std::size_t>(k)] = {high, followed ? id : kNoNode};
        }
        high = low - 1;
        id = n.link;
    }
    sources.sealed->join(number, ladder, std::span(slots).subspan(kOrderCount));
}

struct Vote {
    Token token;
    std::uint32_t votes;
};

// What the segments know best of an order, oldest first. Returns how many.
std::size_t sealed_followers(const Sealed& sealed, std::size_t order, std::span<Vote> all, Slot& slot) {
    std::size_t count = 0;
    const auto parts = sealed.parts();
    for (std::size_t p = parts.size(); p-- > 0;) {
        if (parts[p].rung[order] < 0) continue;
        const auto rung = static_cast<std::size_t>(parts[p].rung[order]);
        const SegmentEvidence& e = parts[p].evidence;
        slot.total += e.total[rung];
        for (std::size_t i = e.strongest_size[rung]; i-- > 0;) {
            const std::size_t c = e.strongest[rung][i];
            std::size_t j = 0;
            while (j < count && all[j].token != e.token[c]) ++j;
            if (j == all.size()) break;
            if (j == count) all[count++] = Vote{e.token[c], 0};
            all[j].votes += e.votes[c][rung];
        }
    }
    return count;
}

// Sums the votes of a slot, and names its `width` strongest tokens; ties go to the newer edge.
std::size_t strongest(Slot& slot, int source, int order, const Sources& sources, int width,
                      std::array<Vote, 4>& top) {
    std::array<Vote, kNodesPerSlot*(kScanned + kScannedLast) + kSealedVotes> all;
    const std::uint32_t writer = sources.writer;
    std::size_t count = 0;
    if (slot.sealed)
        count = sealed_followers(*sources.sealed, static_cast<std::size_t>(order),
                                 std::span(all).first(kSealedVotes), slot);
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
            if (p > 0 || slot.sealed)
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

// Those of segments included.
std::uint32_t votes_in(const Slot& slot, Token token, int source, int order, const Sources& sources) {
    std::uint32_t votes = votes_for(slot, token, source, sources.writer);
    if (!slot.sealed) return votes;
    std::array<std::uint32_t, kOrderCount> sealed;
    sources.sealed->votes(token, sealed);
    return votes + sealed[static_cast<std::size_t>(order)];
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
    if (recovery.index == Recovery::kSealed)
        return sources.sealed->parts()[recovery.sealed.part].segment->token_at(recovery.sealed.position);
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
std::array<int, kSources> propose_followers(Slots& slots, const Sources& sources, int width, Evidence& out) {
    std::array<int, kSources> deepest{-1, -1};
    for (int s = 0; s < kSources; ++s)
        for (int k = 0; k < kOrderCount; ++k) {
            Slot& slot = slots[static_cast<std::size_t>(s * kOrderCount + k)];
            if (slot.empty()) continue;
            std::array<Vote, 4> top;
            const std::size_t n = strongest(slot, s, k, sources, std::min(width, 4), top);
            if (slot.total == 0) {
                slot.places = 0;
                slot.sealed = false;
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
    std::array<std::uint32_t, kOrderCount> sealed_votes;
    if (sources.sealed != nullptr) sources.sealed->votes(c.token, sealed_votes);
    for (int s = 0; s < kSources; ++s)
        for (int k = 0; k < kOrderCount; ++k) {
            const auto i = static_cast<std::size_t>(s * kOrderCount + k);
            const Slot& slot = slots[i];
            if (slot.empty()) continue;
            std::uint32_t votes = votes_for(slot, c.token, s, sources.writer);
            if (slot.sealed) votes += sealed_votes[static_cast<std::size_t>(k)];
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

// Slots, candidates without their probabilities, and what is followed.
std::array<int, kSources> find_contexts(const Sources& sources, const View& view, int width, Slots& slots,
                                        Evidence& out) {
    out.candidates.clear();
    std::array<Match, kSources> match;
    Sealed* const sealed = sources.sealed;
    if (sealed != nullptr) sealed->ask(view.sealed);
    for (std::size_t i = 0; i < sources.indexes.size(); ++i)
        if (sealed != nullptr && sealed->has(i))
            walk_beside(sources, view, i, slots, match[1]);
        else
            walk(sources, view, i, slots, match[i == 0 ? 0 : 1]);
    if (sealed != nullptr) sealed->follow(match[1]);
    const std::array<int, kSources> deepest = propose_followers(slots, sources, width, out);
    Followed& f = out.followed;
    f.match_at = match[1].at;
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
    return deepest;
}

}  // namespace

void collect(const Sources& sources, const View& view, const Learner& learner, int width, Evidence& out) {
    Slots slots;
    const std::array<int, kSources> deepest = find_contexts(sources, view, width, slots, out);
    const Followed& f = out.followed;
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
            if (r.index == Recovery::kSealed)
                ++r.sealed.position;
            else
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
        if (f.match_index[s] == Recovery::kSealed) {
            r = Recovery{{}, {f.match_at.part, f.match_at.position + 1}, Recovery::kSealed, 1, 0};
            continue;
        }
        r = Recovery{view.cursors[f.match_index[s]], {}, f.match_index[s], 1, 0};
        sources.indexes[r.index]->advance(r.at, f.match[s]);
    }
}

void advance(const Sources& sources, View& view, const Followed& followed, Token token) {
    note(sources, view, followed, token, true);
    for (std::size_t i = 0; i < sources.indexes.size(); ++i)
        sources.indexes[i]->advance(view.cursors[i], token);
    if (sources.sealed != nullptr) view.sealed = sources.sealed->step(view.sealed, token);
}

std::vector<ContextVotes> contexts(const Sources& sources, const View& view, int width, Evidence& out) {
    Slots slots;
    find_contexts(sources, view, width, slots, out);
    std::vector<ContextVotes> all;
    for (int s = 0; s < kSources; ++s)
        for (int k = 0; k < kOrderCount; ++k) {
            const Slot& slot = slots[static_cast<std::size_t>(s * kOrderCount + k)];
            if (slot.empty()) continue;
            ContextVotes& context =
                all.emplace_back(ContextVotes{s, kOrders[k], slot.match_len, slot.total, slot.newest, {}});
            for (const Candidate& c : out.candidates)
                context.votes.push_back(votes_in(slot, c.token, s, k, sources));
        }
    return all;
}

void note_drafted(const Sources& sources, const View& view, Token token) {
    std::uint32_t longest = 0;
    const Index* index = nullptr;
    std::uint32_t writer = 0;
    for (std::size_t i = 1; i < sources.indexes.size(); ++i) {
        const Index& hot = *sources.indexes[i];
        std::uint32_t high = view.cursors[i].len;
        for (NodeId id = view.cursors[i].node; id != kRoot && high > longest; id = hot.node(id).link) {
            const NodeId to = hot.next(id, token);
            if (to != kNoNode && votes_of(hot, to, 1, sources.writer) > 0) {
                longest = high;
                index = &hot;
                writer = hot.node(to).writer & ~kManyWriters;
            }
            high = std::min(high, hot.node(hot.node(id).link).len);
        }
    }
    SealedAt at;
    if (sources.sealed != nullptr)
        for (std::size_t p = 0; p < sources.sealed->parts().size(); ++p)
            for (const SegmentRung& rung : sources.sealed->view(view.sealed, p).all()) {
                if (rung.len <= longest) break;
                const std::uint32_t position = sources.sealed->parts()[p].segment->newest_of(rung, token);
                if (position == 0) continue;
                longest = rung.len;
                at = {static_cast<std::uint32_t>(p), position};
            }
    if (at.position != 0)
        sources.sealed->parts()[at.part].segment->note_drafted(at.position);
    else if (index != nullptr)
        index->drafted.note(writer);
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
