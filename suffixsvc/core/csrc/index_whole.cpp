// What looks at the index as a whole: counts, n-grams, statistics, check().
#include <algorithm>
#include <mutex>
#include <optional>

#include "index.h"

namespace suffixsvc {

std::uint64_t Index::count(std::span<const Token> tokens) const {
    NodeId id = kRoot;
    for (Token t : tokens) {
        id = next(id, t);
        if (id == kNoNode) return 0;
    }
    return static_cast<std::uint64_t>(std::max(0, nodes_.count(id)));
}

void Index::ngrams(std::uint32_t n, std::vector<Token>& tokens, std::vector<std::uint64_t>& counts) const {
    constexpr std::uint64_t kTurnEdges = 4096;
    struct Frame {
        std::vector<Edge> out;  // as they were, each once
        std::size_t next = 0;
    };
    if (n == 0) return;
    std::vector<Frame> frames(n);
    std::vector<Token> path(n);
    // Of this turn: what was found before is moved to a larger place now and then.
    std::vector<Token> found;
    std::vector<std::uint64_t> found_counts;
    const auto keep = [&] {
        tokens.insert(tokens.end(), found.begin(), found.end());
        counts.insert(counts.end(), found_counts.begin(), found_counts.end());
        found.clear();
        found_counts.clear();
    };
    std::unique_lock turn(mutex);
    const auto enter = [&](std::size_t depth, NodeId id) {
        const Edges out = edges(id);
        frames[depth].out.assign(out.size(), Edge{});
        for (std::size_t i = 0; i < out.size(); ++i) frames[depth].out[i] = out[i];
        frames[depth].next = 0;
        mutex.did(out.size());
    };
    enter(0, kRoot);
    // What was found stays what it is from one turn to the next; for one first token at a time.
    std::optional<Reading> reading;
    for (std::size_t depth = 0;;) {
        if (mutex.work() >= kTurnEdges) {
            turn.unlock();
            keep();
            turn.lock();
        }
        Frame& frame = frames[depth];
        if (frame.next == frame.out.size()) {
            if (depth-- > 0) continue;
            turn.unlock();
            return keep();
        }
        Edge edge = frame.out[frame.next++];
        path[depth] = edge.token;
        mutex.did(1);
        if (depth == 0) {
            reading.reset();
            reading.emplace();
            edge.to = next(kRoot, edge.token);
            if (edge.to == kNoNode) continue;
        }
        if (depth + 1 < n) {
            enter(++depth, edge.to);
        } else if (const std::int32_t count = nodes_.count(edge.to); count > 0) {
            found.insert(found.end(), path.begin(), path.end());
            found_counts.push_back(static_cast<std::uint64_t>(count));
        }
    }
}

IndexStats Index::stats() const {
    IndexStats s;
    s.nodes = nodes_.live();
    s.edges = nodes_.num_edges();
    s.tokens = tokens_ - repeated_;
    s.bytes = nodes_.bytes();
    s.used = nodes_.used_bytes();
    s.appended = appended_;
    s.visited = visited_;
    s.session_tokens = static_cast<std::uint64_t>(std::max<std::int64_t>(0, live.tokens.load()));
    s.session_bytes = session_bytes();
    return s;
}

std::string Index::check() const {
    auto at_node = [](const char* what, NodeId id) {
        return std::string(what) + " (node " + std::to_string(id) + ")";
    };
    struct Sums {
        std::uint32_t kids = 0, kids_xor = 0;
        std::int64_t received = 0;
    };
    std::vector<Sums> sums(nodes_.dense_end());
    std::uint64_t live = 0, all_ends = 0, all_edges = 0;
    std::int64_t unsettled = 0;
    auto look_at = [&](NodeId id) -> std::string {
        const NodeView n = node(id);
        const std::int32_t unsent = nodes_.unsent(id);
        ++live;
        all_ends += nodes_.ends(id);
        all_edges += n.fanout;
        unsettled += unsent != 0;
        if (const char* what = nodes_.broken(id)) return at_node(what, id);
        if (id == kRoot) {
            if (n.len != 0 || n.link != kNoNode) return "the root has a length or a link";
        } else {
            if (n.link == kNoNode || !nodes_.exists(n.link)) return at_node("a link leads to no node", id);
            const NodeView up = node(n.link);
            if (up.len >= n.len) return at_node("a link does not lead to a shorter string", id);
            const Body* b = nodes_.body(id);
            if (b != nullptr && b->ends == 0 && b->kids < 2)
                return at_node("a node has no text ending in it and fewer than two children", id);
            Sums& s = sums[nodes_.dense(n.link)];
            s.kids += 1;
            s.kids_xor ^= id;
            s.received += n.count - unsent;
            if (n.count < 0) return at_node("a count is negative", id);
            if (up.len >= max_context_ && (n.count != 0 || unsent != 0))
                return at_node("a context beyond max_context is counted", id);
            if (!(up.writer & kManyWriters) && up.writer != n.writer)
                return at_node("a writer is not among its parent's", id);
        }
        for (const Edge& e : edges(id)) {
            if (!nodes_.exists(e.to)) return at_node("an edge leads to no node", id);
            // The target holds this node's longest string made longer by the token.
            if (len(e.to) < n.len + 1) return at_node("an edge leads to a shorter string", id);
            if (len(link(e.to)) > n.len) return at_node("an edge leads to a node of longer strings only", id);
            // Every shorter context of this node knows the token too, and agrees or leads higher up.
            if (id != kRoot) {
                const NodeId up = next(n.link, e.token);
                if (up == kNoNode)
                    return at_node("a shorter context does not know a token that a longer one knows", id);
                NodeId t = e.to;
                while (t != up && t != kRoot) t = link(t);
                if (t != up)
                    return at_node("a shorter context's edge does not lead up from a longer one's", id);
            }
        }
        return {};
    };
    std::string problem;
    nodes_.for_each([&](NodeId id) {
        if (problem.empty()) problem = look_at(id);
    });
    nodes_.for_each([&](NodeId id) {
        if (!problem.empty()) return;
        const Body* b = nodes_.body(id);
        const Sums& s = sums[nodes_.dense(id)];
        if (s.kids != (b != nullptr ? b->kids : 0) || s.kids_xor != (b != nullptr ? b->kids_xor : 0))
            problem = at_node("children are miscounted", id);
        else if (len(id) < max_context_ && s.received > nodes_.count(id))
            problem = at_node("a node received more than it counts", id);
    });
    if (!problem.empty()) return problem;
    if (live != nodes_.live()) return "live nodes are miscounted";
    if (all_ends != tokens_) return "text positions are miscounted";
    if (all_edges != nodes_.num_edges()) return "edges are miscounted";
    if (unsettled != unsettled_) return "unsettled nodes are miscounted";
    return {};
}

}  // namespace suffixsvc
