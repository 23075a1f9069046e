// Index::check: what must hold of every node, and of all of them together.
//
// The nodes are walked in turns, page by page, once for what each must be and once for what its children
// add up to. Others write in between. What must hold of a node alone holds at any time. What its children add
// up to is compared where neither it nor they were changed since the walk began: writers tell (changed). The
// totals are compared where nothing was.
#include <mutex>
#include <string>
#include <vector>

#include "index.h"

namespace suffixsvc {

class Index::Checking {
  public:
    explicit Checking(const Index& index) : index_(index), nodes_(index.nodes_), turn_(index.mutex) {
        names_ = nodes_.names();
        turn_.unlock();
        sums_.resize(names_.size());
        turn_.lock();
        index_.checking_ = this;
    }
    Checking(const Checking&) = delete;
    Checking& operator=(const Checking&) = delete;
    ~Checking() {
        index_.checking_ = nullptr;
        turn_.unlock();  // before the memory goes back
    }

    std::string find();
    void changed(NodeId id) {
        undisturbed_ = false;
        if (Sums* s = sums(id)) s->changed = 1;
    }

  private:
    static constexpr std::uint64_t kTurnLooks = 512;  // nodes and edges; a look is several cache misses

    struct Sums {
        std::uint32_t kids : 31 = 0;
        std::uint32_t changed : 1 = 0;
        std::uint32_t kids_xor = 0;
        std::int64_t received = 0;
    };

    // Null for a name that was not given out when the walk began.
    Sums* sums(NodeId id) {
        const std::size_t i = names_.place(id);
        return i < sums_.size() ? &sums_[i] : nullptr;
    }
    // Lets others go first now and then; true where it did.
    bool rest() {
        if (index_.mutex.work() < kTurnLooks) return false;
        turn_.unlock();
        turn_.lock();
        return true;
    }
    // Calls look(id) for every node until it finds something.
    template <typename F>
    std::string walk(F&& look);
    std::string look_at(NodeId id);
    std::string look_at_edges(NodeId id);
    std::string add_up(NodeId id);

    const Index& index_;
    const Nodes& nodes_;
    std::unique_lock<Mutex> turn_;
    Nodes::Names names_;
    std::vector<Sums> sums_;
    std::uint64_t nodes_seen_ = 0, ends_ = 0, edges_ = 0;
    std::int64_t unsettled_ = 0;
    bool undisturbed_ = true;
};

namespace {
std::string at_node(const char* what, NodeId id) {
    return std::string(what) + " (node " + std::to_string(id) + ")";
}
}  // namespace

template <typename F>
std::string Index::Checking::walk(F&& look) {
    std::vector<NodeId> page;
    for (Nodes::PageCursor at; nodes_.next_page(at, [&](NodeId id) { page.push_back(id); }); page.clear()) {
        index_.mutex.did(1);
        rest();
        for (const NodeId id : page) {
            if (!nodes_.exists(id)) continue;
            if (std::string problem = look(id); !problem.empty()) return problem;
            index_.mutex.did(1);
            rest();
        }
    }
    return {};
}

std::string Index::Checking::look_at(NodeId id) {
    const NodeView n = index_.node(id);
    const std::int32_t unsent = nodes_.unsent(id);
    ++nodes_seen_;
    ends_ += nodes_.ends(id);
    edges_ += n.fanout;
    unsettled_ += unsent != 0;
    if (const char* what = nodes_.broken(id)) return at_node(what, id);
    if (id == kRoot) {
        if (n.len != 0 || n.link != kNoNode) return "the root has a length or a link";
    } else {
        if (n.link == kNoNode || !nodes_.exists(n.link)) return at_node("a link leads to no node", id);
        const NodeView up = index_.node(n.link);
        if (up.len >= n.len) return at_node("a link does not lead to a shorter string", id);
        const Body* b = nodes_.body(id);
        if (b != nullptr && b->ends == 0 && b->kids < 2)
            return at_node("a node has no text ending in it and fewer than two children", id);
        if (Sums* s = sums(n.link)) {
            ++s->kids;
            s->kids_xor ^= id;
            s->received += n.count - unsent;
        }
        if (n.count < 0) return at_node("a count is negative", id);
        if (up.len >= index_.max_context_ && (n.count != 0 || unsent != 0))
            return at_node("a context beyond max_context is counted", id);
        if (!(up.writer & kManyWriters) && up.writer != n.writer)
            return at_node("a writer is not among its parent's", id);
    }
    return look_at_edges(id);
}

// There may be any number of them: others may write between two.
std::string Index::Checking::look_at_edges(NodeId id) {
    for (std::size_t i = 0;; ++i) {
        if (rest() && !nodes_.exists(id)) return {};
        const Edges edges = index_.edges(id);
        if (i >= edges.size()) return {};
        const Edge e = edges[i];
        const std::uint32_t len = index_.len(id);
        index_.mutex.did(1);
        if (!nodes_.finds(id, i)) return at_node("an edge is not found where it stands", id);
        if (!nodes_.exists(e.to)) return at_node("an edge leads to no node", id);
        // The target holds this node's longest string made longer by the token.
        if (index_.len(e.to) < len + 1) return at_node("an edge leads to a shorter string", id);
        if (index_.len(index_.link(e.to)) > len)
            return at_node("an edge leads to a node of longer strings only", id);
        // Every shorter context of this node knows the token too, and agrees or leads higher up.
        if (id == kRoot) continue;
        const NodeId up = index_.next(index_.link(id), e.token);
        if (up == kNoNode)
            return at_node("a shorter context does not know a token that a longer one knows", id);
        NodeId t = e.to;
        for (; t != up && t != kRoot; t = index_.link(t)) index_.mutex.did(1);
        if (t != up) return at_node("a shorter context's edge does not lead up from a longer one's", id);
    }
}

std::string Index::Checking::add_up(NodeId id) {
    const Sums* s = sums(id);
    if (s == nullptr || s->changed) return {};
    const Body* b = nodes_.body(id);
    if (s->kids != (b != nullptr ? b->kids : 0) || s->kids_xor != (b != nullptr ? b->kids_xor : 0))
        return at_node("children are miscounted", id);
    if (index_.len(id) < index_.max_context_ && s->received > nodes_.count(id))
        return at_node("a node received more than it counts", id);
    return {};
}

std::string Index::Checking::find() {
    if (std::string problem = walk([this](NodeId id) { return look_at(id); }); !problem.empty())
        return problem;
    if (undisturbed_) {
        if (nodes_seen_ != nodes_.live()) return "live nodes are miscounted";
        if (ends_ != index_.tokens_) return "text positions are miscounted";
        if (edges_ != nodes_.num_edges()) return "edges are miscounted";
        if (unsettled_ != index_.unsettled_) return "unsettled nodes are miscounted";
    }
    return walk([this](NodeId id) { return add_up(id); });
}

std::string Index::check() const {
    const std::scoped_lock one(checks_);
    return Checking(*this).find();
}

void Index::notify_check(NodeId id) { checking_->changed(id); }

}  // namespace suffixsvc
