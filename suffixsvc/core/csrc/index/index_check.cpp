// Index::check: verifies the invariants of every node, and of all nodes together.
//
// Nodes are visited page by page, in two passes: one for the invariants of each node, one for the sums over
// its children. The mutex is released between batches, and others write then. Invariants of a single node
// hold at any time. Sums are compared only where neither the node nor its children were changed since the
// check began: writers report changes (Index::changed). Totals are compared only if nothing was changed.
#include <mutex>
#include <string>
#include <vector>

#include "index/index.h"

namespace suffixsvc {

class Index::Checker {
  public:
    explicit Checker(const Index& index) : index_(index), nodes_(index.nodes_), lock_(index.mutex) {
        ids_ = nodes_.allocated_ids();
        lock_.unlock();
        sums_.resize(ids_.size());
        lock_.lock();
        index_.checker_ = this;
    }
    Checker(const Checker&) = delete;
    Checker& operator=(const Checker&) = delete;
    ~Checker() {
        index_.checker_ = nullptr;
        lock_.unlock();  // before the memory is freed
    }

    std::string run();
    void changed(NodeId id) {
        undisturbed_ = false;
        if (Sums* s = sums(id)) s->changed = 1;
    }

  private:
    // nodes and edges per batch; each takes several cache misses
    static constexpr std::uint64_t kBatchReads = 512;

    struct Sums {
        std::uint32_t child_count : 31 = 0;
        std::uint32_t changed : 1 = 0;
        std::uint32_t child_xor = 0;
        std::int64_t received = 0;
    };

    // Null for an id that was allocated after the check began.
    Sums* sums(NodeId id) {
        const std::size_t i = ids_.place(id);
        return i < sums_.size() ? &sums_[i] : nullptr;
    }
    // Lets waiting writers run once per batch; returns whether it did.
    bool yield_mutex() {
        if (index_.mutex.work() < kBatchReads) return false;
        lock_.unlock();
        lock_.lock();
        return true;
    }
    // Calls visit(id) for every node until one returns a problem.
    template <typename F>
    std::string walk(F&& visit);
    std::string check_node(NodeId id);
    std::string check_edges(NodeId id);
    std::string check_sums(NodeId id);

    const Index& index_;
    const Nodes& nodes_;
    std::unique_lock<Mutex> lock_;
    Nodes::IdRanges ids_;
    std::vector<Sums> sums_;
    std::uint64_t nodes_seen_ = 0, ends_ = 0, edges_ = 0;
    std::int64_t num_pending_ = 0;
    bool undisturbed_ = true;
};

namespace {
std::string at_node(const char* what, NodeId id) {
    return std::string(what) + " (node " + std::to_string(id) + ")";
}
}  // namespace

template <typename F>
std::string Index::Checker::walk(F&& visit) {
    std::vector<NodeId> page;
    for (Nodes::PageCursor at; nodes_.next_page(at, [&](NodeId id) { page.push_back(id); }); page.clear()) {
        index_.mutex.add_work(1);
        yield_mutex();
        for (const NodeId id : page) {
            if (!nodes_.exists(id)) continue;
            if (std::string problem = visit(id); !problem.empty()) return problem;
            index_.mutex.add_work(1);
            yield_mutex();
        }
    }
    return {};
}

std::string Index::Checker::check_node(NodeId id) {
    const NodeView n = index_.node(id);
    const std::int32_t pending = nodes_.pending(id);
    ++nodes_seen_;
    ends_ += nodes_.ends(id);
    edges_ += n.fanout;
    num_pending_ += pending != 0;
    if (const char* what = nodes_.violation(id)) return at_node(what, id);
    if (id == kRoot) {
        if (n.len != 0 || n.link != kNoNode) return "the root has a length or a link";
    } else {
        if (n.link == kNoNode || !nodes_.exists(n.link)) return at_node("a link target does not exist", id);
        const NodeView up = index_.node(n.link);
        if (up.len >= n.len) return at_node("a link does not lead to a shorter string", id);
        const Body* b = nodes_.body(id);
        if (b != nullptr && b->ends == 0 && b->child_count < 2)
            return at_node("a node has no text ending in it and fewer than two children", id);
        if (Sums* s = sums(n.link)) {
            ++s->child_count;
            s->child_xor ^= id;
            s->received += n.count - pending;
        }
        if (n.count < 0) return at_node("a count is negative", id);
        if (up.len >= index_.max_context_ && (n.count != 0 || pending != 0))
            return at_node("a context beyond max_context is counted", id);
        if (!(up.writer & kManyWriters) && up.writer != n.writer)
            return at_node("a writer is not among its parent's", id);
    }
    return check_edges(id);
}

// A node may have any number of edges: the mutex may be released between two of them.
std::string Index::Checker::check_edges(NodeId id) {
    for (std::size_t i = 0;; ++i) {
        if (yield_mutex() && !nodes_.exists(id)) return {};
        const Edges edges = index_.edges(id);
        if (i >= edges.size()) return {};
        const Edge e = edges[i];
        const std::uint32_t len = index_.len(id);
        index_.mutex.add_work(1);
        if (!nodes_.finds(id, i)) return at_node("an edge is not found by its token", id);
        if (!nodes_.exists(e.to)) return at_node("an edge target does not exist", id);
        // The target represents this node's longest string extended by the token.
        if (index_.len(e.to) < len + 1) return at_node("an edge leads to a shorter string", id);
        if (index_.len(index_.link(e.to)) > len)
            return at_node("an edge leads to a node that has longer strings only", id);
        // Every shorter context of this node also has an edge for the token, to the same node or to
        // an ancestor.
        if (id == kRoot) continue;
        const NodeId up = index_.next(index_.link(id), e.token);
        if (up == kNoNode) return at_node("a shorter context lacks an edge that a longer one has", id);
        NodeId t = e.to;
        for (; t != up && t != kRoot; t = index_.link(t)) index_.mutex.add_work(1);
        if (t != up)
            return at_node("a shorter context's edge does not lead to an ancestor of a longer one's target",
                           id);
    }
}

std::string Index::Checker::check_sums(NodeId id) {
    const Sums* s = sums(id);
    if (s == nullptr || s->changed) return {};
    const Body* b = nodes_.body(id);
    if (s->child_count != (b != nullptr ? b->child_count : 0) ||
        s->child_xor != (b != nullptr ? b->child_xor : 0))
        return at_node("children are miscounted", id);
    if (index_.len(id) < index_.max_context_ && s->received > nodes_.count(id))
        return at_node("the sum over a node's children exceeds its count", id);
    return {};
}

std::string Index::Checker::run() {
    if (std::string problem = walk([this](NodeId id) { return check_node(id); }); !problem.empty())
        return problem;
    if (undisturbed_) {
        if (nodes_seen_ != nodes_.live()) return "live nodes are miscounted";
        if (ends_ != index_.tokens_) return "text positions are miscounted";
        if (edges_ != nodes_.num_edges()) return "edges are miscounted";
        if (num_pending_ != index_.num_pending_) return "nodes with pending counts are miscounted";
    }
    return walk([this](NodeId id) { return check_sums(id); });
}

std::string Index::check() const {
    const std::scoped_lock one(check_mutex_);
    return Checker(*this).run();
}

void Index::notify_check(NodeId id) { checker_->changed(id); }

}  // namespace suffixsvc
