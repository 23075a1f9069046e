// Storage of the index's nodes.
//
//   plain     {head link writer edge}               20 bytes: one text ends there, no other node links to it,
//                                                   at most one token followed. Most nodes.
//   full      {head link | body}                    48 bytes: everything
//   promoted  {head link . ->}  { . . | body}       a plain node that outgrew its form keeps its id; its body
//                                                   lies elsewhere
//
// A node's id tells its slab: the top bit is set for plain and promoted ones. The edge of a plain node holds
// a node id, or, with the second bit set, a reference to the node's separate body. So a node is promoted, and
// demoted again, by storing one word, and its state is complete for readers before and after.
//
// Threads: one writer and concurrent readers (base/memory/epoch_guard.h). Each value of a view was true at
// some moment while the view was made, independently of the other values. A node is visible to readers as
// soon as it has a link. A retired node keeps its link, its edges and its body until no reader can reach it.
// Lengths never change, and a link always leads to a shorter string: every walk along links terminates.
#pragma once

#include <cstdint>
#include <span>

#include "index/edges.h"

namespace suffixsvc {

inline constexpr NodeId kRoot = 0;
// Flag of a writer id: evidence from several writers, of which this is a recent one. Ids are below it.
inline constexpr std::uint32_t kManyWriters = 0x80000000u;

// The part that every node has.
struct Node {
    AtomicField<std::uint32_t> head;  // length of the longest string, 28 bits, and flags; 0: free
    AtomicField<NodeId> link;         // parent; kNoNode for the root, and for a node that is not complete yet

    static constexpr std::uint32_t kMaxLen = (1u << 28) - 1;
    static constexpr std::uint32_t kRetired = 1u << 31;
    static constexpr std::uint32_t kCounted = 1u << 30;  // plain: count is 1
    static constexpr std::uint32_t kPending = 1u << 29;  // plain: pending is 1
    static constexpr std::uint32_t kTheRoot = 1u << 28;  // so that the root's head is not 0

    std::uint32_t len() const { return head & kMaxLen; }
};

struct Body {
    AtomicField<std::int32_t> count{0};  // occurrences that reached this node; 0 beyond max_context
    std::int32_t pending = 0;            // the part of count that was not propagated to link yet
    // edges.recent: the token that last followed, as far as appends reached this node
    EdgeList edges;
    std::uint32_t child_count = 0;  // number of nodes linked to this one
    std::uint32_t child_xor = 0;    // XOR of their ids
    std::uint32_t ends = 0;         // positions of live texts whose whole prefix is the node's string
    AtomicField<std::uint32_t> writer{
        0};  // the one writer of all its occurrences, or a recent one and kManyWriters
};

struct PlainNode : Node {
    AtomicField<std::uint32_t> writer;
    AtomicField<Token> token;  // token of the edge
    // target of the edge, kNoNode if there is none; promoted: reference to the body
    AtomicField<NodeId> to;
};
static_assert(sizeof(PlainNode) == 20);

struct FullNode : Node {
    Body body;
};
static_assert(sizeof(FullNode) == 48);

// A node as readers see it.
struct NodeView {
    std::uint32_t len;     // length of the longest string
    NodeId link;           // root: none
    std::int32_t count;    // occurrences that reached this node; 0 beyond max_context
    std::uint32_t writer;  // the one writer of all its occurrences, or a recent one and kManyWriters
    std::uint32_t fanout;  // number of edges
    Token recent;          // the token that last followed, as far as appends reached this node; or -1
};

// The occurrences of a node as evidence.
struct NodeVotes {
    std::int32_t count;
    std::uint32_t writer;
};

class Nodes {
  public:
    // `readers`: whether other threads read while one writes. If not, memory is reused at once.
    explicit Nodes(bool readers);

    // Makes a node in which one text of one writer ends. Readers do not see it before it has a link.
    NodeId make_plain(std::uint32_t len, std::uint32_t writer);
    // Makes a node in which no text ends. No edge or link may lead to it before it has a link.
    NodeId make_full(std::uint32_t len);
    // Unlinks a node. Only retired nodes may still lead to it.
    void retire(NodeId id);
    bool retired(NodeId id) const { return (at(id)->head & Node::kRetired) != 0; }
    // The node that took over the strings of a retired one: its only child, or its parent.
    NodeId successor(NodeId id) const {
        const Body* b = body(id);
        return b != nullptr && b->child_count == 1 ? NodeId{b->child_xor} : link(id);
    }
    // Frees a bounded number of retired objects that no reader can reach; returns whether more are left.
    // Cursors to retired nodes must have been invalidated before.
    bool collect();
    bool due() const { return retire_list_.due(); }
    // Touches the memory that will be needed next; not to be called with the writers' mutex held.
    void populate() {
        plain_.populate();
        full_.populate();
        pool_.populate();
    }
    // Resets the counts of the empty context.
    void reset_root();

    Node* at(NodeId id) const {
        return reinterpret_cast<Node*>(id & kPlain ? plain_.at(id & ~kPlain) : full_.at(id));
    }
    std::uint32_t len(NodeId id) const { return at(id)->len(); }
    NodeId link(NodeId id) const { return at(id)->link; }
    bool complete(NodeId id) const { return link(id) != kNoNode; }
    // Null for a plain node.
    Body* body(NodeId id) const {
        if (!(id & kPlain)) return &full(id)->body;
        const NodeId to = plain(id)->to;
        return is_body_ref(to) ? body_at(to) : nullptr;
    }
    // The node's body; promotes a plain node.
    Body& promoted(NodeId id) {
        Body* b = body(id);
        return b != nullptr ? *b : promote(id);
    }
    // Demotes a promoted node that fits the plain form again.
    void demote(NodeId id);

    std::int32_t count(NodeId id) const {
        const Body* b = body(id);
        return b != nullptr ? b->count.load() : (at(id)->head & Node::kCounted) != 0;
    }
    std::int32_t pending(NodeId id) const {
        const Body* b = body(id);
        return b != nullptr ? b->pending : (at(id)->head & Node::kPending) != 0;
    }
    void set_counts(NodeId id, std::int32_t count, std::int32_t pending);
    std::uint32_t ends(NodeId id) const {
        const Body* b = body(id);
        return b != nullptr ? b->ends : 1;
    }
    std::uint32_t writer(NodeId id) const {
        const Body* b = body(id);
        return b != nullptr ? b->writer.load() : plain(id)->writer.load();
    }
    NodeView view(NodeId id) const {
        const Node* n = at(id);
        const std::uint32_t head = n->head;
        const std::uint32_t length = head & Node::kMaxLen;
        const Body* b;
        if (id & kPlain) {
            const PlainNode* p = plain(id);
            const Edge one = inline_edge(p);
            if (!is_body_ref(one.to)) {
                const bool followed = one.to != kNoNode;
                return {length,    n->link,  (head & Node::kCounted) != 0,
                        p->writer, followed, followed ? one.token : -1};
            }
            b = body_at(one.to);
        } else {
            b = &full(id)->body;
        }
        return {length, n->link, b->count, b->writer, b->edges.where().size, b->edges.recent};
    }

    NodeVotes votes(NodeId id) const {
        if (const Body* b = body(id)) return {b->count, b->writer};
        const PlainNode* p = plain(id);
        return {(p->head & Node::kCounted) != 0, p->writer};
    }

    // ---- edges -----------------------------------------------------------------------------------
    Edges edges(NodeId id) const {
        if (id & kPlain) {
            const Edge one = inline_edge(plain(id));
            if (!is_body_ref(one.to)) return one.to != kNoNode ? Edges(one) : Edges();
            return pool_.edges(body_at(one.to)->edges);
        }
        return pool_.edges(full(id)->body.edges);
    }
    NodeId next(NodeId id, Token token) const {
        if (id & kPlain) {
            const Edge one = inline_edge(plain(id));
            if (!is_body_ref(one.to)) return one.token == token ? one.to : kNoNode;
            return pool_.find(body_at(one.to)->edges, token);
        }
        return pool_.find(full(id)->body.edges, token);
    }
    // The token's target, or kNoNode after an edge to `to` was added. Either way it is the recent token now.
    NodeId find_or_add(NodeId id, Token token, NodeId to);
    // Redirects the token's edge from `from` to `to`; false if it does not lead to `from`.
    bool replace(NodeId id, Token token, NodeId from, NodeId to);
    // Erases the token's edge to `to`; false if there is no such edge.
    bool erase(NodeId id, Token token, NodeId to);
    // Copies the edges of a node to a full node without edges.
    void copy_edges(NodeId from, NodeId to);

    // ---- prefetching -----------------------------------------------------------------------------
    void prefetch(NodeId id) const { __builtin_prefetch(at(id)); }
    // For a node that was just read: its edges or, if it has only one, the target.
    void prefetch_followers(NodeId id) const {
        if (const Body* b = body(id)) {
            const EdgeList::Where w = b->edges.where();
            if (w.size_class > 0)
                pool_.prefetch_block(w);
            else if (w.ref != kNoNode)
                prefetch(w.ref);
        } else if (const NodeId to = plain(id)->to; to != kNoNode && !is_body_ref(to)) {
            prefetch(to);
        }
    }
    void prefetch_bucket(NodeId id, Token token) const {
        if (const Body* b = body(id)) pool_.prefetch_bucket(b->edges, token);
    }
    void prefetch_edge(NodeId id, Token token) const {
        if (const Body* b = body(id)) pool_.prefetch_edge(b->edges, token);
    }

    // ---- statistics and iteration ----------------------------------------------------------------
    std::uint64_t live() const { return live_; }
    std::uint64_t num_edges() const { return num_edges_; }
    std::size_t bytes() const {
        return plain_.bytes() + full_.bytes() + pool_.bytes() + retire_list_.bytes();
    }
    std::size_t used_bytes() const { return plain_.used_bytes() + full_.used_bytes() + pool_.used_bytes(); }
    // A position in an iteration over all nodes, page by page of their memory: nodes that exist during the
    // whole iteration are visited once, whatever is written between two pages.
    struct PageCursor {
        std::uint32_t full = 0, plain = 0;
    };
    // Calls f(id) for the nodes of the next page; false at the end.
    template <typename F>
    bool next_page(PageCursor& at, F&& f) const {
        const auto nodes_of = [&](const auto& slab, std::uint32_t& page, NodeId flag) {
            if (page >= slab.pages()) return false;
            slab.for_page(page++, [&](NodeId first, std::uint32_t fresh, std::uint32_t) {
                for (NodeId id = first | flag; id < (first | flag) + fresh; ++id)
                    if (is_live(id)) f(id);
            });
            return true;
        };
        return nodes_of(full_, at.full, 0) || nodes_of(plain_, at.plain, kPlain);
    }
    // The ids allocated so far, mapped to indexes of a table.
    struct IdRanges {
        std::size_t full = 0, plain = 0;

        std::size_t size() const { return full + plain; }
        // size() or more for an id that was allocated later.
        std::size_t place(NodeId id) const {
            if (id & kPlain) return full + std::size_t{id & ~kPlain};
            return id < full ? id : size();
        }
    };
    IdRanges allocated_ids() const { return {full_.end(), plain_.end()}; }
    bool exists(NodeId id) const {
        return (id & kPlain ? (id & ~kPlain) < plain_.end() : id < full_.end()) && is_live(id);
    }
    // The violated invariant of a node's edge list, or null; whether edge i is found by its token.
    const char* violation(NodeId id) const;
    bool finds(NodeId id, std::size_t i) const;

  private:
    static constexpr NodeId kPlain = 1u << 31;
    static constexpr NodeId kBody = 1u << 30;  // refers to the body in a unit of the full slab

    static bool is_body_ref(NodeId to) { return (to & (kPlain | kBody)) == kBody; }
    PlainNode* plain(NodeId id) const { return reinterpret_cast<PlainNode*>(plain_.at(id & ~kPlain)); }
    FullNode* full(NodeId id) const { return reinterpret_cast<FullNode*>(full_.at(id)); }
    Body* body_at(NodeId to) const { return &full(to & ~kBody)->body; }
    // A consistent snapshot of a plain node's edge, or the reference to its body; compare EdgePool::edges.
    static Edge inline_edge(const PlainNode* n) {
        for (;;) {
            const NodeId to = n->to;
            const Token token = n->token;
            if (n->to == to) return {token, to};
        }
    }
    bool is_live(NodeId id) const {
        const std::uint32_t head = at(id)->head;
        return head != 0 && !(head & Node::kRetired);
    }
    std::uint32_t new_full(std::uint32_t head);
    Body& promote(NodeId id);
    void free(NodeId id);
    static void set_flags(Node& n, std::int32_t count, std::int32_t pending);

    Slab<20, 1024> plain_;
    Slab<48, 256> full_;
    RetireList<Retired> retire_list_;
    EdgePool pool_;
    bool readers_;
    bool trimmed_ = true;
    std::uint64_t live_ = 0;
    std::uint64_t num_edges_ = 0;
};

}  // namespace suffixsvc
