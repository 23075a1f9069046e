#include "draft/evidence/contexts.h"

#include <algorithm>

#include "draft/evidence/sealed_segments.h"

namespace suffixsvc {

namespace {

constexpr std::uint32_t kMinRecovery = 3;  // shorter contexts are not continued
constexpr std::size_t kNewest = 4;         // edges searched for the last follower

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
    for (std::size_t i = out.size(), seen = 0; i-- > 0 && seen < kNewest; ++seen)
        if (votes_of(index, out[i].to, source, writer) > 0) return out[i].token;
    return -1;
}

// Visits the contexts of a position in one index, the longest first: calls f(id, node, order, low, high,
// followed) for those that cover an order (kOrders[order] is the largest; low and high are their lengths),
// until enough of them had followers. Also finds the match.
template <typename F>
void walk(const Sources& sources, const View& view, std::size_t number, Match& match, F f) {
    const Index& index = *sources.indexes[number];
    const int source = number == 0 ? 0 : 1;
    const std::uint32_t writer = sources.writer;
    NodeId id = view.cursors[number].node;
    std::uint32_t high = view.cursors[number].len;
    for (std::size_t found = 0; id != kRoot && found < kEvaluatedSlots;) {
        const NodeView n = index.node(id);
        const std::uint32_t low = index.len(n.link) + 1;
        if (high >= low) {
            const bool followed = n.fanout > 0 && (source == 0 || n.writer != writer);
            if (followed && high >= kMinMatch && high > match.len) {
                const Token token = last_follower(index, id, source, writer);
                if (token >= 0) match = Match{token, high, static_cast<std::uint8_t>(number), {}};
            }
            const int order = order_of(high);
            if (order >= 0 && kOrders[order] >= static_cast<int>(low)) {
                f(id, n, order, low, high, followed);
                found += followed;
            }
        }
        high = std::min(high, low - 1);
        id = n.link;
    }
}

void walk_index_only(const Sources& sources, const View& view, std::size_t number,
                     std::span<ContextSlot> slots, Match& match) {
    const Index& index = *sources.indexes[number];
    int filled = 0;
    walk(sources, view, number, match,
         [&](NodeId id, const NodeView& n, int order, std::uint32_t, std::uint32_t high, bool followed) {
             if (!followed) return;
             if (filled++ < kProposingSlots) index.prefetch_followers(id);
             ContextSlot& slot = slots[static_cast<std::size_t>(order)];
             if (slot.num_nodes == 0) slot.newest = n.recent;
             if (slot.num_nodes < kNodesPerSlot) {
                 slot.nodes[slot.num_nodes++] = NodeRef{&index, id};
                 slot.match_len = std::max(slot.match_len, high);
             }
         });
}

// For a namespace that has segments: its slots are filled together with theirs.
void walk_with_segments(const Sources& sources, const View& view, std::size_t number,
                        std::span<ContextSlot> slots, Match& match) {
    MatchLevels match_levels;
    match_levels.index = sources.indexes[number];
    walk(sources, view, number, match,
         [&](NodeId id, const NodeView&, int order, std::uint32_t low, std::uint32_t high, bool followed) {
             for (int k = order; k >= 0 && kOrders[k] >= static_cast<int>(low); --k)
                 match_levels.steps[static_cast<std::size_t>(k)] = {high, followed ? id : kNoNode};
         });
    sources.sealed->fill_slots(number, match_levels, slots);
}

std::uint32_t votes_for(const ContextSlot& slot, Token token, int source, std::uint32_t writer) {
    std::uint32_t votes = 0;
    for (std::size_t p = 0; p < slot.num_nodes; ++p) {
        const NodeId to = slot.nodes[p].index->next(slot.nodes[p].id, token);
        if (to != kNoNode) votes += votes_of(*slot.nodes[p].index, to, source, writer);
    }
    return votes;
}

std::uint32_t count_of(const ContextSlot& slot) {
    std::uint32_t count = 0;
    for (std::size_t p = 0; p < slot.num_nodes; ++p)
        count += static_cast<std::uint32_t>(std::max(0, slot.nodes[p].index->votes(slot.nodes[p].id).count));
    return count;
}

std::uint32_t sealed_total(const SealedSegments& sealed, std::size_t order) {
    std::uint32_t total = 0;
    for (const SealedPart& part : sealed.parts())
        if (const int level = part.level_of[order]; level >= 0)
            total += part.evidence.total[static_cast<std::size_t>(level)];
    return total;
}

// Visits the edges that may become candidates.
template <typename F>
void scan(const NodeRef& place, const ScanLimits& limits, F f) {
    const auto out = place.index->edges(place.id);
    const bool wide = out.size() > limits.total();
    for (std::size_t i = 0; i < out.size(); ++i) {
        if (wide && i == limits.first) i = out.size() - limits.last;
        f(out[i]);
    }
}

void propose(Evidence& out, Token token) {
    for (const Candidate& c : out.candidates)
        if (c.token == token) return;
    out.candidates.emplace_back();
    out.candidates.back().token = token;
}

// The next token of the text that a recovery continues.
Token recovery_token(const Sources& sources, const Recovery& recovery, int source) {
    if (recovery.index == Recovery::kNoIndex) return -1;
    if (recovery.index == Recovery::kSealed)
        return sources.sealed->parts()[recovery.sealed.part].segment->token_at(recovery.sealed.position);
    const Index& index = *sources.indexes[recovery.index];
    std::uint32_t high = recovery.at.len;
    for (NodeId id = recovery.at.node; id != kRoot && high >= kMinRecovery; id = index.node(id).link) {
        const std::uint32_t shorter = index.len(index.node(id).link);
        if (high > shorter) {
            const Token token = last_follower(index, id, source, sources.writer);
            if (token >= 0) return token;
            high = shorter;
        }
    }
    return -1;
}

}  // namespace

void Contexts::add(Followers& followers, Token token, std::uint32_t votes) {
    std::uint32_t i = followers.begin;
    while (i < followers.end && all_[i].token != token) ++i;
    if (i == followers.end) all_[followers.end++] = Vote{token, 0};
    all_[i].votes += votes;
}

// Adds the strongest followers of an order in the segments, oldest first.
void Contexts::add_sealed(const Sources& sources, std::size_t number) {
    ContextSlot& slot = slots_[number];
    Followers& followers = followers_[number];
    const std::size_t order = number % kOrderCount;
    const auto parts = sources.sealed->parts();
    for (std::size_t p = parts.size(); p-- > 0;) {
        if (parts[p].level_of[order] < 0) continue;
        const auto level = static_cast<std::size_t>(parts[p].level_of[order]);
        const SegmentEvidence& e = parts[p].evidence;
        slot.total += e.total[level];
        for (std::size_t i = e.strongest_size[level]; i-- > 0;) {
            const std::size_t c = e.strongest[level][i];
            if (followers.end - followers.begin == kSealedVotes) break;
            add(followers, e.token[c], e.votes[c][level]);
        }
    }
}

// Sums the votes of a slot, in total and by follower.
void Contexts::count_followers(const Sources& sources, std::size_t number, const ScanLimits& limits) {
    ContextSlot& slot = slots_[number];
    Followers& followers = followers_[number];
    const int source = static_cast<int>(number) / kOrderCount;
    followers = Followers{static_cast<std::uint32_t>(size_), static_cast<std::uint32_t>(size_), !slot.sealed};
    if (slot.sealed) add_sealed(sources, number);
    for (std::size_t p = 0; p < slot.num_nodes; ++p) {
        const NodeRef& place = slot.nodes[p];
        std::uint32_t seen = 0;
        std::size_t edges_read = 0;
        scan(place, limits, [&](const Edge& edge) {
            ++edges_read;
            const std::uint32_t v = votes_of(*place.index, edge.to, source, sources.writer);
            if (v == 0) return;
            seen += v;
            if (p > 0 || slot.sealed)
                add(followers, edge.token, v);
            else
                all_[followers.end++] = Vote{edge.token, v};  // a node has one edge per token
        });
        if (edges_read == limits.total()) {
            // Instead of the votes of unscanned edges: the node's count.
            followers.complete = false;
            seen =
                std::max(seen, static_cast<std::uint32_t>(std::max(0, place.index->votes(place.id).count)));
        }
        slot.total += seen;
    }
    size_ = followers.end;
}

// The strongest followers; ties go to the newer edge.
std::size_t Contexts::strongest(const Followers& followers, std::size_t width,
                                std::array<Vote, kMaxStrongest>& top) const {
    std::size_t retained = 0;
    for (std::uint32_t i = followers.begin; i < followers.end; ++i) {
        std::size_t j = retained;
        while (j > 0 && top[j - 1].votes <= all_[i].votes) --j;
        if (j >= width) continue;
        retained = std::min(retained + 1, width);
        for (std::size_t m = retained - 1; m > j; --m) top[m] = top[m - 1];
        top[j] = all_[i];
    }
    return retained;
}

// Goes from the longest context to the shortest.
void Contexts::propose_followers(const Sources& sources, std::size_t source, int width, Evidence& out) {
    std::array<std::uint8_t, kEvaluatedSlots> evaluated;
    std::size_t size = 0;
    for (std::size_t k = kOrderCount; k-- > 0 && size < kEvaluatedSlots;)
        if (const std::size_t i = source * kOrderCount + k; !slots_[i].empty())
            evaluated[size++] = static_cast<std::uint8_t>(i);
    const auto reach = [](bool deepest) { return deepest ? kDeepestScan : kSecondaryScan; };
    for (std::size_t x = 0; x < std::min<std::size_t>(size, kProposingSlots); ++x) {
        const ContextSlot& slot = slots_[evaluated[x]];
        for (std::size_t p = 0; p < slot.num_nodes; ++p)
            scan(slot.nodes[p], reach(x == 0),
                 [&](const Edge& edge) { slot.nodes[p].index->prefetch(edge.to); });
    }
    int proposing = 0;
    std::uint64_t votes = 0;
    for (std::size_t x = 0; x < size; ++x) {
        const std::size_t i = evaluated[x], order = i - source * kOrderCount;
        ContextSlot& slot = slots_[i];
        if (proposing == kProposingSlots || votes >= kEnoughVotes) {
            // This includes text ends and the session's own text, which is negligible at high counts.
            slot.total = count_of(slot);
            if (slot.sealed) slot.total += sealed_total(*sources.sealed, order);
        } else {
            count_followers(sources, i, reach(proposing == 0));
            if (slot.total == 0) continue;
            votes += slot.total;
            const std::size_t max_candidates = proposing == 0 ? kMaxStrongest : kMaxSecondary;
            if (proposing++ == 0) deepest_[source] = static_cast<int>(order);
            std::array<Vote, kMaxStrongest> top;
            const std::size_t n =
                strongest(followers_[i], std::min(static_cast<std::size_t>(width), max_candidates), top);
            for (std::size_t t = 0; t < n; ++t) propose(out, top[t].token);
        }
        found_[num_found_++] = static_cast<std::uint8_t>(i);
    }
}

void Contexts::find(const Sources& sources, const View& view, int width, Evidence& out) {
    out.candidates.clear();
    std::array<Match, kSources> match;
    SealedSegments* const sealed = sources.sealed;
    if (sealed != nullptr) sealed->query(view.sealed, static_cast<std::size_t>(width));
    for (std::size_t i = 0; i < sources.indexes.size(); ++i) {
        const std::size_t source = i == 0 ? 0 : 1;
        const auto slots = std::span(slots_).subspan(source * kOrderCount, kOrderCount);
        const bool with_segments = sealed != nullptr && sealed->has_segments(i);
        (with_segments ? walk_with_segments : walk_index_only)(sources, view, i, slots, match[source]);
    }
    if (sealed != nullptr) sealed->update_match(match[1]);
    for (std::size_t s = 0; s < kSources; ++s) propose_followers(sources, s, width, out);
    Predictions& f = out.predictions;
    f.match_at = match[1].at;
    for (std::size_t s = 0; s < kSources; ++s) {
        f.match[s] = match[s].token;
        f.match_len[s] = match[s].len;
        f.match_index[s] = match[s].index;
        f.recovery[s] = recovery_token(sources, view.recoveries[s], static_cast<int>(s));
        if (f.recovery[s] >= 0) propose(out, f.recovery[s]);
        if (f.match[s] < 0) continue;
        // Contexts end at max_context, repetitions may be longer.
        if (f.match_len[s] >= sources.indexes[0]->max_context()) f.match_len[s] += view.run[s];
        propose(out, f.match[s]);
    }
    count_votes(sources, out);
}

void Contexts::count_votes(const Sources& sources, const Evidence& out) {
    const std::size_t n = out.candidates.size();
    std::array<std::array<std::uint32_t, kOrderCount>, kMaxProposed> sealed;
    if (sources.sealed != nullptr)
        for (std::size_t c = 0; c < n; ++c) sources.sealed->votes(out.candidates[c].token, sealed[c]);
    std::size_t retained = 0;
    for (std::size_t x = 0; x < num_found_; ++x) {
        const std::size_t i = found_[x];
        ContextSlot& slot = slots_[i];
        const Followers& followers = followers_[i];
        const int source = static_cast<int>(i) / kOrderCount;
        std::uint32_t sum = 0;
        for (std::size_t c = 0; c < n; ++c) {
            const Token token = out.candidates[c].token;
            std::uint32_t& votes = votes_[i][c];
            if (followers.complete) {
                std::uint32_t v = followers.begin;
                while (v < followers.end && all_[v].token != token) ++v;
                votes = v < followers.end ? all_[v].votes : 0;
            } else {
                votes = votes_for(slot, token, source, sources.writer);
                if (slot.sealed) votes += sealed[c][i % kOrderCount];
            }
            sum += votes;
        }
        // A context that occurs only in prompts has no count, but its followers have.
        slot.total = std::max(slot.total, sum);
        if (slot.total > 0) found_[retained++] = found_[x];
    }
    num_found_ = retained;
}

std::vector<ContextVotes> contexts(const Sources& sources, const View& view, int width, Evidence& out) {
    Contexts found;
    found.find(sources, view, width, out);
    std::vector<ContextVotes> all;
    for (const std::size_t i : found.found()) {
        const ContextSlot& slot = found.slot(i);
        ContextVotes& context = all.emplace_back(ContextVotes{static_cast<int>(i) / kOrderCount,
                                                              kOrders[i % kOrderCount],
                                                              slot.match_len,
                                                              slot.total,
                                                              slot.newest,
                                                              {}});
        const auto& votes = found.votes(i);
        context.votes.assign(votes.begin(), votes.begin() + out.candidates.size());
    }
    return all;
}

void record_use(const Sources& sources, const View& view, Token token) {
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
                writer = hot.votes(to).writer & ~kManyWriters;
            }
            high = std::min(high, hot.len(hot.node(id).link));
        }
    }
    SealedAt at;
    if (sources.sealed != nullptr)
        for (std::size_t p = 0; p < sources.sealed->parts().size(); ++p)
            for (const SegmentLevel& level : sources.sealed->view(view.sealed, p).all()) {
                if (level.len <= longest) break;
                const std::uint32_t position = sources.sealed->parts()[p].segment->newest_of(level, token);
                if (position == 0) continue;
                longest = level.len;
                at = {static_cast<std::uint32_t>(p), position};
            }
    if (at.position != 0)
        sources.sealed->parts()[at.part].segment->record_use(at.position);
    else if (index != nullptr)
        index->recently_used.record(writer);
}

}  // namespace suffixsvc
