// What looks at the index as a whole: counts, n-grams, statistics, check().
#include <algorithm>

#include "index.h"

namespace suffixsvc {

std::uint64_t Index::count(std::span<const Token> tokens) const {
    NodeId id = kRoot;
    for (Token t : tokens) {
        id = next(id, t);
        if (id == kNoNode) return 0;
    }
    return static_cast<std::uint64_t>(std::max(0, count_of(at(id))));
}

void Index::ngrams(std::uint32_t n, std::vector<Token>& tokens, std::vector<std::uint64_t>& counts) const {
    struct Frame {
        NodeId id;
        std::uint32_t edge;
    };
    if (n == 0) return;
    std::vector<Frame> stack{{kRoot, 0}};
    std::vector<Token> path;
    while (!stack.empty()) {
        Frame& top = stack.back();
        const auto out = edges(top.id);
        if (stack.size() == n + 1 || top.edge == out.size()) {
            if (stack.size() == n + 1 && count_of(at(top.id)) > 0) {
                tokens.insert(tokens.end(), path.begin(), path.end());
                counts.push_back(static_cast<std::uint64_t>(count_of(at(top.id))));
            }
            stack.pop_back();
            if (!path.empty()) path.pop_back();
            continue;
        }
        const Edge e = out[top.edge++];
        stack.push_back({e.to, 0});
        path.push_back(e.token);
    }
}

IndexStats Index::stats() const {
    IndexStats s;
    s.nodes = live_;
    s.edges = edges_;
    s.tokens = tokens_;
    s.bytes = nodes_.bytes() + pool_.bytes() + dead_.capacity() * sizeof(NodeId);
    s.appended = appended_;
    s.visited = visited_;
    return s;
}

std::string Index::check() const {
    auto at_node = [](const char* what, NodeId id) {
        return std::string(what) + " (node " + std::to_string(id) + ")";
    };
    const NodeId end = nodes_.end();
    std::vector<std::uint32_t> kids(end, 0), kids_xor(end, 0);
    std::vector<std::int64_t> received(end, 0);
    std::vector<bool> alive(end, false);
    std::uint64_t live = 0, all_ends = 0, all_edges = 0;
    std::int64_t unsettled = 0;
    std::string problem;
    for_each_node([&](NodeId id, const Node&) { alive[id] = true; });
    auto look_at = [&](NodeId id, const Node& n) -> std::string {
        ++live;
        all_ends += ends_of(&n);
        all_edges += edges(id).size();
        unsettled += unsent_of(&n) != 0;
        if (n.has_block())
            if (const char* what = pool_.broken(block(&n))) return at_node(what, id);
        if (id == kRoot) {
            if (n.len() != 0 || n.link != kNoNode) return "the root has a length or a link";
        } else {
            if (n.link >= end || !alive[n.link]) return at_node("a link leads to no node", id);
            if (len(n.link) >= n.len()) return at_node("a link does not lead to a shorter string", id);
            if (n.has_block() && block(&n)->ends == 0 && block(&n)->kids < 2)
                return at_node("a node has no text ending in it and fewer than two children", id);
            kids[n.link] += 1;
            kids_xor[n.link] ^= id;
            received[n.link] += count_of(&n) - unsent_of(&n);
            if (count_of(&n) < 0) return at_node("a count is negative", id);
            if (len(n.link) >= max_context_ && (count_of(&n) != 0 || unsent_of(&n) != 0))
                return at_node("a context beyond max_context is counted", id);
            const std::uint32_t up = at(n.link)->writer;
            if (up != kManyWriters && up != n.writer)
                return at_node("a writer is not among its parent's", id);
        }
        for (const Edge& e : edges(id)) {
            if (e.to >= end || !alive[e.to]) return at_node("an edge leads to no node", id);
            // The target holds this node's longest string made longer by the token.
            if (len(e.to) < n.len() + 1) return at_node("an edge leads to a shorter string", id);
            if (len(at(e.to)->link) > n.len())
                return at_node("an edge leads to a node of longer strings only", id);
            // Every shorter context of this node knows the token too, and agrees or leads higher up.
            if (id != kRoot) {
                const NodeId up = next(n.link, e.token);
                if (up == kNoNode)
                    return at_node("a shorter context does not know a token that a longer one knows", id);
                NodeId t = e.to;
                while (t != up && t != kRoot) t = at(t)->link;
                if (t != up)
                    return at_node("a shorter context's edge does not lead up from a longer one's", id);
            }
        }
        return {};
    };
    for_each_node([&](NodeId id, const Node& n) {
        if (problem.empty()) problem = look_at(id, n);
    });
    if (!problem.empty()) return problem;
    for_each_node([&](NodeId id, const Node& n) {
        if (!problem.empty()) return;
        const Block* b = n.has_block() ? block(&n) : nullptr;
        if (kids[id] != (b ? b->kids : 0) || kids_xor[id] != (b ? b->kids_xor : 0))
            problem = at_node("children are miscounted", id);
        else if (n.len() < max_context_ && received[id] > count_of(&n))
            problem = at_node("a node received more than it counts", id);
    });
    if (!problem.empty()) return problem;
    if (live != live_) return "live nodes are miscounted";
    if (all_ends != tokens_) return "text positions are miscounted";
    if (all_edges != edges_) return "edges are miscounted";
    if (unsettled != unsettled_) return "unsettled nodes are miscounted";
    return {};
}

}  // namespace suffixsvc
