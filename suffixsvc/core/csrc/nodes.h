// How the index keeps its nodes.
//
//   plain   {head link writer edge}               20 bytes: one text ends there, no other node's link leads
//                                                 there, at most one token followed. Most nodes.
//   full    {head link | body}                    48 bytes: everything
//   grown   {head link . ->}  { . . | body}       a plain node that became more than that keeps its name
//                                                 and finds its body elsewhere
//
// A node's name tells which slab it lies in: the top bit is set for plain and grown ones. A plain node's edge
// leads to a name; the second bit is set where it leads to the node's own body instead. So a node grows, and
// becomes plain again, by one word, and what readers see of it before and after is complete.
//
// Threads: one writer, and readers beside it (grace.h). What a view holds was true at some moment while it
// was made, each value by itself. A node is there for readers as soon as it has a link. A buried one keeps
// its link, its edges and its body until nobody can look at them. Lengths never change, and no link ever
// leads to anything but a shorter string: every way along links ends.
#pragma once

#include <cstdint>
#include <span>

#include "edges.h"

namespace suffixsvc {

inline constexpr NodeId kRoot = 0;
// Flag of a writer: evidence from more than one, of which this is a recent one. Writers are below it.
inline constexpr std::uint32_t kManyWriters = 0x80000000u;

// What every node has.
struct Node {
    Word<std::uint32_t> head;  // length of the longest string, 28 bits, and flags; 0: no node
    Word<NodeId> link;         // root: none. Of another node: none until it is complete

    static constexpr std::uint32_t kMostLen = (1u << 28) - 1;
    static constexpr std::uint32_t kBuried = 1u << 31;
    static constexpr std::uint32_t kCounted = 1u << 30;  // plain: count is 1
    static constexpr std::uint32_t kUnsent = 1u << 29;   // plain: unsent is 1
    static constexpr std::uint32_t kTheRoot = 1u << 28;  // so that its head is not 0

    std::uint32_t len() const { return head & kMostLen; }
};

struct Body {
    Word<std::int32_t> count{0};    // occurrences that reached this node; 0 beyond max_context
    std::int32_t unsent = 0;        // the part of count that link does not know of yet
    EdgeList edges;                 // and the token that last followed it, as far as growing touched it
    std::uint32_t kids = 0;         // nodes whose link this is
    std::uint32_t kids_xor = 0;     // exclusive or of their ids
    std::uint32_t ends = 0;         // positions of live texts whose whole prefix is the node's string
    Word<std::uint32_t> writer{0};  // the one writer of all its occurrences, or a recent one and kManyWriters
};

struct PlainNode : Node {
    Word<std::uint32_t> writer;
    Word<Token> token;  // of its edge
    Word<NodeId> to;    // kNoNode where nothing followed. Grown: names the body
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
    std::uint32_t fanout;  // edges
    Token recent;          // the token that last followed it, as far as growing touched it; or -1
};

// What a node's occurrences are worth as evidence.
struct NodeVotes {
    std::int32_t count;
    std::uint32_t writer;
};

class Nodes {
  public:
    // `readers`: whether others look while one writes. If not, memory is used again at once.
    explicit Nodes(bool readers);

    // One text of one writer ends there. No reader sees it before it has a link.
    NodeId make_plain(std::uint32_t len, std::uint32_t writer);
    // No text ends there. No edge or link may lead there before it has a link.
    NodeId make_full(std::uint32_t len);
    // Takes a node out. Nothing may lead there any more but what is buried.
    void bury(NodeId id);
    bool buried(NodeId id) const { return (at(id)->head & Node::kBuried) != 0; }
    // The node that took a buried one's strings over: its only child, or what it hung on.
    NodeId heir(NodeId id) const {
        const Body* b = body(id);
        return b != nullptr && b->kids == 1 ? NodeId{b->kids_xor} : link(id);
    }
    // Frees what readers cannot look at any more, a bounded part of it at a time; true where there is more.
    // Cursors to buried nodes must be known to be stale by now.
    bool collect();
    bool due() const { return limbo_.due(); }
    // Has the system find the memory that will be needed next; not under the lock of the writers.
    void populate() {
        plain_.populate();
        full_.populate();
        pool_.populate();
    }
    // Nothing followed the empty context yet.
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
        return names_body(to) ? body_at(to) : nullptr;
    }
    // A plain node grows.
    Body& grown(NodeId id) {
        Body* b = body(id);
        return b != nullptr ? *b : grow(id);
    }
    // Undoes growing where the node is like most again.
    void shrink(NodeId id);

    std::int32_t count(NodeId id) const {
        const Body* b = body(id);
        return b != nullptr ? b->count.load() : (at(id)->head & Node::kCounted) != 0;
    }
    std::int32_t unsent(NodeId id) const {
        const Body* b = body(id);
        return b != nullptr ? b->unsent : (at(id)->head & Node::kUnsent) != 0;
    }
    void set_counts(NodeId id, std::int32_t count, std::int32_t unsent);
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
        const std::uint32_t length = head & Node::kMostLen;
        const Body* b;
        if (id & kPlain) {
            const PlainNode* p = plain(id);
            const Edge one = one_of(p);
            if (!names_body(one.to)) {
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
            const Edge one = one_of(plain(id));
            if (!names_body(one.to)) return one.to != kNoNode ? Edges(one) : Edges();
            return pool_.edges(body_at(one.to)->edges);
        }
        return pool_.edges(full(id)->body.edges);
    }
    NodeId next(NodeId id, Token token) const {
        if (id & kPlain) {
            const Edge one = one_of(plain(id));
            if (!names_body(one.to)) return one.token == token ? one.to : kNoNode;
            return pool_.find(body_at(one.to)->edges, token);
        }
        return pool_.find(full(id)->body.edges, token);
    }
    // Where the token leads, or kNoNode after adding an edge to `to`. Either way it is the recent one now.
    NodeId find_or_add(NodeId id, Token token, NodeId to);
    // Lets the token's edge lead to `to` where it leads to `from`; false where it does not.
    bool replace(NodeId id, Token token, NodeId from, NodeId to);
    // Erases the token's edge where it leads to `to`; false where it does not.
    bool erase(NodeId id, Token token, NodeId to);
    // Gives a full node without edges those of another.
    void copy_edges(NodeId from, NodeId to);

    // ---- fetching what will be looked at soon ----------------------------------------------------
    void prefetch(NodeId id) const { __builtin_prefetch(at(id)); }
    // Of a node that was just looked at: its edges or, where it has only one, where that leads.
    void prefetch_followers(NodeId id) const {
        if (const Body* b = body(id)) {
            const EdgeList::Where w = b->edges.where();
            if (w.size_class > 0)
                pool_.prefetch_block(w);
            else if (w.ref != kNoNode)
                prefetch(w.ref);
        } else if (const NodeId to = plain(id)->to; to != kNoNode && !names_body(to)) {
            prefetch(to);
        }
    }
    void prefetch_slot(NodeId id, Token token) const {
        if (const Body* b = body(id)) pool_.prefetch_slot(b->edges, token);
    }
    void prefetch_edge(NodeId id, Token token) const {
        if (const Body* b = body(id)) pool_.prefetch_edge(b->edges, token);
    }

    // ---- as a whole ------------------------------------------------------------------------------
    std::uint64_t live() const { return live_; }
    std::uint64_t num_edges() const { return num_edges_; }
    std::size_t bytes() const { return plain_.bytes() + full_.bytes() + pool_.bytes() + limbo_.bytes(); }
    std::size_t used_bytes() const { return plain_.used_bytes() + full_.used_bytes() + pool_.used_bytes(); }
    // A way through all nodes, page by page of their memory: those that are there all the time are met once,
    // whatever is written between two pages.
    struct PageCursor {
        std::uint32_t full = 0, plain = 0;
    };
    // Calls f(id) for the nodes of the next page; false where there is none.
    template <typename F>
    bool next_page(PageCursor& at, F&& f) const {
        const auto nodes_of = [&](const auto& slab, std::uint32_t& page, NodeId flag) {
            if (page >= slab.pages()) return false;
            slab.for_page(page++, [&](NodeId first, std::uint32_t fresh, std::uint32_t) {
                for (NodeId id = first | flag; id < (first | flag) + fresh; ++id)
                    if (lives(id)) f(id);
            });
            return true;
        };
        return nodes_of(full_, at.full, 0) || nodes_of(plain_, at.plain, kPlain);
    }
    // The names that were given out so far, each with a place in a table.
    struct Names {
        std::size_t full = 0, plain = 0;

        std::size_t size() const { return full + plain; }
        // size() or more: none of them.
        std::size_t place(NodeId id) const {
            if (id & kPlain) return full + std::size_t{id & ~kPlain};
            return id < full ? id : size();
        }
    };
    Names names() const { return {full_.end(), plain_.end()}; }
    bool exists(NodeId id) const {
        return (id & kPlain ? (id & ~kPlain) < plain_.end() : id < full_.end()) && lives(id);
    }
    // What is wrong with a node's list of edges as a whole, or null; whether edge i is found by its token.
    const char* broken(NodeId id) const;
    bool finds(NodeId id, std::size_t i) const;

  private:
    static constexpr NodeId kPlain = 1u << 31;
    static constexpr NodeId kBody = 1u << 30;  // of a full node's unit: its body alone

    static bool names_body(NodeId to) { return (to & (kPlain | kBody)) == kBody; }
    PlainNode* plain(NodeId id) const { return reinterpret_cast<PlainNode*>(plain_.at(id & ~kPlain)); }
    FullNode* full(NodeId id) const { return reinterpret_cast<FullNode*>(full_.at(id)); }
    Body* body_at(NodeId to) const { return &full(to & ~kBody)->body; }
    // A plain node's edge at one moment, or the name of its body. As with an inline edge (edges.h).
    static Edge one_of(const PlainNode* n) {
        for (;;) {
            const NodeId to = n->to;
            const Token token = n->token;
            if (n->to == to) return {token, to};
        }
    }
    bool lives(NodeId id) const {
        const std::uint32_t head = at(id)->head;
        return head != 0 && !(head & Node::kBuried);
    }
    std::uint32_t new_full(std::uint32_t head);
    Body& grow(NodeId id);
    void free(NodeId id);
    static void set_flags(Node& n, std::int32_t count, std::int32_t unsent);

    Slab<20, 1024> plain_;
    Slab<48, 256> full_;
    Limbo<Retired> limbo_;
    EdgePool pool_;
    bool readers_;
    bool trimmed_ = true;
    std::uint64_t live_ = 0;
    std::uint64_t num_edges_ = 0;
};

}  // namespace suffixsvc
