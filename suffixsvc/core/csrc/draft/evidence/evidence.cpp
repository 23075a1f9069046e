#include "draft/evidence/evidence.h"

#include <algorithm>
#include <cmath>

#include "draft/evidence/contexts.h"
#include "draft/evidence/sealed_segments.h"
#include "draft/learning/floats.h"

namespace suffixsvc {

namespace {

constexpr std::uint32_t kNoFeature = 0xFFFFFFFFu;
// matches of this length are continued after a token that differs, ...
constexpr std::uint32_t kRecoverFrom = 12;
constexpr std::uint32_t kRecovered = 16;  // ... until there is a match of this length again
constexpr std::uint8_t kMaxMisses = 7;

// The part of a context's features that all candidates share.
struct SharedFeatures {
    std::size_t slot;
    Learner::ContextFeature feature;
    std::uint32_t absent;  // feature of a candidate without votes, ...
    float absent_input;    // ... and its input
    float share;           // prior probability per vote
};
using KnownContexts = std::array<SharedFeatures, kSources * kEvaluatedSlots>;

// The features of a candidate as odds, converted to logits together.
class Odds {
  public:
    void add(const Learner& learner, Candidate& c, std::size_t input, std::uint32_t feature, float prior) {
        c.features[input] = feature;
        const auto [right, wrong] = learner.odds(feature, prior);
        right_[size_] = right;
        wrong_[size_] = wrong;
        input_[size_++] = static_cast<std::uint8_t>(input);
    }
    void to_inputs(Candidate& c) {
        for (std::size_t i = size_; i % 4 != 0; ++i) right_[i] = wrong_[i] = 1.f;
        std::array<float, kPadded> logits;
        for (std::size_t i = 0; i < size_; i += 4)
            store4(&logits[i], stretch_odds(load4(&right_[i]) / load4(&wrong_[i])));
        for (std::size_t i = 0; i < size_; ++i) c.inputs[input_[i]] = logits[i];
    }

  private:
    std::array<float, kPadded> right_, wrong_;
    std::array<std::uint8_t, kPadded> input_;
    std::size_t size_ = 0;
};

void update_longest(Candidate& c, std::uint32_t match_len, int source) {
    if (match_len <= c.match_len) return;
    c.match_len = match_len;
    c.source = static_cast<std::uint8_t>(source);
}

// Features of the contexts that were found; returns their number.
std::size_t shared_features(const Contexts& contexts, const Learner& learner, KnownContexts& known) {
    std::size_t n = 0;
    std::array<float, kSources * kEvaluatedSlots> odds;
    for (const std::size_t i : contexts.found()) {
        const std::uint32_t votes = contexts.slot(i).total;
        const auto total = static_cast<float>(votes);
        const auto source = static_cast<int>(i) / kOrderCount, order = static_cast<int>(i) % kOrderCount;
        SharedFeatures& k = known[n++];
        k.slot = i;
        k.feature = Learner::ContextFeature(source, order, votes);
        k.absent = k.feature.absent();
        const auto [right, wrong] = learner.odds(k.absent, 0.05f / (1.f + std::sqrt(total)));
        odds[n - 1] = right / wrong;
        k.share = 0.85f / (total + 0.7f);
    }
    for (std::size_t i = n; i % 4 != 0; ++i) odds[i] = 1.f;
    for (std::size_t i = 0; i < n; i += 4) {
        const Float4 inputs = stretch_odds(load4(&odds[i]));
        for (std::size_t j = 0; j < std::min<std::size_t>(4, n - i); ++j)
            known[i + j].absent_input = inputs[j];
    }
    return n;
}

void add_predictions(const Learner& learner, const View& view, const Predictions& f, Candidate& c,
                     Odds& odds) {
    for (int s = 0; s < kSources; ++s) {
        const auto source = static_cast<std::size_t>(s);
        if (f.match[source] >= 0) {
            const bool agrees = f.match[source] == c.token;
            odds.add(learner, c, kMatchInput + source, Learner::match_feature(s, f.match_len[source], agrees),
                     agrees ? (s == 0 ? 0.6f : 0.5f) : 0.03f);
            if (agrees) update_longest(c, f.match_len[source], s);
        }
        if (f.recovery[source] >= 0) {
            const Recovery& r = view.recoveries[source];
            const bool agrees = f.recovery[source] == c.token;
            odds.add(learner, c, kRecoveryInput + source,
                     Learner::recovery_feature(s, r.misses, r.hits, agrees), agrees ? 0.4f : 0.05f);
            // known from the text that is continued only: no context has it
            if (agrees && c.match_len == 0) c.source = static_cast<std::uint8_t>(s);
        }
    }
}

void mix_features(const View& view, const Learner& learner, const Contexts& contexts, Evidence& found) {
    KnownContexts known;
    const std::size_t contexts_known = shared_features(contexts, learner, known);
    std::array<Inputs, kMixers> weights;
    for (std::size_t m = 0; m < kMixers; ++m) learner.weights(found.sets[m], weights[m]);
    for (std::size_t j = 0; j < found.candidates.size(); ++j) {
        Candidate& c = found.candidates[j];
        c.inputs.fill(0.f);
        c.features.fill(kNoFeature);
        c.inputs[kBias] = kBiasInput;
        c.source = 0;
        c.match_len = 0;
        Odds odds;
        for (std::size_t x = 0; x < contexts_known; ++x) {
            const SharedFeatures& k = known[x];
            const ContextSlot& slot = contexts.slot(k.slot);
            const std::uint32_t v = contexts.votes(k.slot)[j];
            if (v == 0) {
                c.features[k.slot] = k.absent;
                c.inputs[k.slot] = k.absent_input;
                continue;
            }
            odds.add(learner, c, k.slot, k.feature.present(v, slot.newest == c.token),
                     std::min(0.99f, static_cast<float>(v) * k.share));
            update_longest(c, slot.match_len, k.slot < kOrderCount ? 0 : 1);
        }
        add_predictions(learner, view, found.predictions, c, odds);
        const auto token = static_cast<std::uint32_t>(c.token);
        const std::uint32_t long_known = (c.match_len >= 3) + (c.match_len >= 8);
        odds.add(learner, c, kTokenInput, Learner::token_feature(0, token * 3u + long_known), 0.3f);
        odds.add(learner, c, kTokenInput + 1,
                 Learner::token_feature(1, token * 2654435761u ^ static_cast<std::uint32_t>(view.last)),
                 0.3f);
        odds.to_inputs(c);
        float sum = 0.f;
        for (std::size_t m = 0; m < kMixers; ++m) {
            c.logits[m] = Learner::mix(weights[m], c.inputs);
            sum += c.logits[m];
        }
        c.logit = sum / kMixers;
    }
}

}  // namespace

void collect(const Sources& sources, const View& view, const Learner& learner, int width, Evidence& out) {
    Contexts contexts;
    contexts.find(sources, view, width, out);
    const Predictions& f = out.predictions;
    const bool both = f.match[0] >= 0 && f.match[1] >= 0;
    out.sets = {
        Learner::contexts_set(contexts.deepest(0), contexts.deepest(1), f.match[0] >= 0, f.match[1] >= 0),
        Learner::history_set(view.history, std::max(f.match_len[0], f.match_len[1]),
                             !both ? 0 : (f.match[0] == f.match[1] ? 1 : 2)),
        Learner::token_set(static_cast<std::uint32_t>(view.last))};
    mix_features(view, learner, contexts, out);
    // Insertion sort: the candidates are few, large, and nearly in order.
    out.order.resize(out.candidates.size());
    for (std::size_t i = 0; i < out.candidates.size(); ++i) {
        std::size_t j = i;
        for (; j > 0 && out.best(j - 1).logit < out.candidates[i].logit; --j) out.order[j] = out.order[j - 1];
        out.order[j] = static_cast<std::uint8_t>(i);
    }
}

void record_token(const Sources& sources, View& view, const Predictions& f, Token token, bool expected) {
    view.history = view.history << 1 | static_cast<std::uint32_t>(expected);
    view.last = token;
    for (std::size_t s = 0; s < kSources; ++s) {
        view.run[s] = f.match[s] == token ? view.run[s] + 1 : 0;
        Recovery& r = view.recoveries[s];
        if (r.index != Recovery::kNoIndex && f.recovery[s] >= 0) {
            // The recovery advances in its own text, whatever token followed.
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
        if (f.recovery[s] < 0 || r.misses > kMaxMisses || again) r.index = Recovery::kNoIndex;
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

void advance(const Sources& sources, View& view, const Predictions& predictions, Token token) {
    record_token(sources, view, predictions, token, true);
    for (std::size_t i = 0; i < sources.indexes.size(); ++i)
        sources.indexes[i]->advance(view.cursors[i], token);
    if (sources.sealed != nullptr) view.sealed = sources.sealed->step(view.sealed, token);
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
