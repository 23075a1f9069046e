// What looks at the index as a whole: counts, n-grams, statistics. What is wrong with it: index_check.cpp.
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

}  // namespace suffixsvc
