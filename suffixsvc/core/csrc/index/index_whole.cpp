// Operations on the whole index: counts, n-grams, statistics. Verification is in index/index_check.cpp.
#include <algorithm>
#include <mutex>
#include <optional>

#include "index/index.h"

namespace suffixsvc {

std::uint64_t Index::count(std::span<const Token> tokens) const {
    NodeId id = kRoot;
    for (Token t : tokens) {
        id = next(id, t);
        if (id == kNoNode) return 0;
    }
    return static_cast<std::uint64_t>(std::max(0, nodes_.count(id)));
}

NgramCounts Index::ngrams(std::uint32_t n) const {
    constexpr std::uint64_t kBatchEdges = 4096;
    struct Frame {
        std::vector<Edge> out;  // a copy, each edge once
        std::size_t next = 0;
    };
    NgramCounts all;
    if (n == 0) return all;
    std::vector<Frame> frames(n);
    std::vector<Token> path(n);
    // Results of this batch; they are moved to the output, which may reallocate, while the mutex is released.
    NgramCounts found;
    const auto flush_found = [&] {
        all.tokens.insert(all.tokens.end(), found.tokens.begin(), found.tokens.end());
        all.counts.insert(all.counts.end(), found.counts.begin(), found.counts.end());
        found.tokens.clear();
        found.counts.clear();
    };
    std::unique_lock lock(mutex);
    const auto enter = [&](std::size_t depth, NodeId id) {
        const Edges out = edges(id);
        frames[depth].out.assign(out.size(), Edge{});
        for (std::size_t i = 0; i < out.size(); ++i) frames[depth].out[i] = out[i];
        frames[depth].next = 0;
        mutex.add_work(out.size());
    };
    enter(0, kRoot);
    // The guard keeps the nodes of the path alive between batches; it is renewed for every first token.
    std::optional<EpochGuard> guard;
    for (std::size_t depth = 0;;) {
        if (mutex.work() >= kBatchEdges) {
            lock.unlock();
            flush_found();
            lock.lock();
        }
        Frame& frame = frames[depth];
        if (frame.next == frame.out.size()) {
            if (depth-- > 0) continue;
            lock.unlock();
            flush_found();
            return all;
        }
        Edge edge = frame.out[frame.next++];
        path[depth] = edge.token;
        mutex.add_work(1);
        if (depth == 0) {
            guard.reset();
            guard.emplace();
            edge.to = next(kRoot, edge.token);
            if (edge.to == kNoNode) continue;
        }
        if (depth + 1 < n) {
            enter(++depth, edge.to);
        } else if (const std::int32_t count = nodes_.count(edge.to); count > 0) {
            found.tokens.insert(found.tokens.end(), path.begin(), path.end());
            found.counts.push_back(static_cast<std::uint64_t>(count));
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
