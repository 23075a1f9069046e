// Benchmark of the cost of writers to readers of a shared index: step latencies of sessions that draft from
// an index while another thread writes into it, against the same sessions while that thread writes into a
// separate index.
//
//   core_reads [tokens] [seconds]
//
// Steps are single tokens of a text that the index mostly knows, each with a draft of up to 16. "alone": no
// writer. "elsewhere": the writer fills another index, so that it uses a core and cache, but shares nothing.
// "tokens": it appends token by token as a session does. "texts": it adds whole texts of 500 tokens. "churn":
// it adds one and removes one. Finally sessions that all write into the index that they draft from.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "draft/session.h"
#include "index/index.h"

using namespace suffixsvc;
using Clock = std::chrono::steady_clock;

namespace {

using Text = std::vector<Token>;

constexpr std::size_t kTextTokens = 500;

// Recurring phrases with other values filled in, as in agents' outputs.
class Texts {
  public:
    explicit Texts(std::uint32_t seed) : random_(seed) {
        std::mt19937 fixed(7);
        for (int i = 0; i < 3000; ++i) {
            phrases_.emplace_back();
            const std::size_t n = 4 + fixed() % 30;
            for (std::size_t k = 0; k < n; ++k)
                phrases_.back().push_back(static_cast<Token>(std::min(fixed() % 30000, fixed() % 30000)));
        }
    }
    Text text(std::size_t tokens = kTextTokens) {
        Text out;
        while (out.size() < tokens) {
            const std::size_t a = random_() % 3000, b = random_() % 3000;
            const Text& p = phrases_[std::min(a, b)];
            out.insert(out.end(), p.begin(), p.end());
            for (std::uint32_t k = 0; k < random_() % 3; ++k)
                out.push_back(static_cast<Token>(random_() % 30000));
        }
        out.resize(tokens);
        return out;
    }

  private:
    std::mt19937 random_;
    std::vector<Text> phrases_;
};

double percentile(std::vector<float>& values, double q) {
    if (values.empty()) return 0.0;
    const auto k = static_cast<std::size_t>(q * static_cast<double>(values.size() - 1));
    std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(k), values.end());
    return values[k];
}

struct Load {
    std::string name;
    int writers;
    bool shared;
    enum { tokens, texts, churn } kind;
};

void write_on(Index& index, const Load& load, const std::atomic<bool>& stop, std::uint64_t& written,
              std::uint32_t seed) {
    Texts texts(seed);
    std::vector<Text> kept;
    std::uint32_t writer = 1000;
    while (!stop.load(std::memory_order_relaxed)) {
        const Text text = texts.text();
        ++writer;
        if (load.kind == Load::tokens) {
            TextEnd end;
            {
                const std::unique_lock write(index.mutex);
                end.epoch = index.epoch();
            }
            for (std::size_t i = 0; i < text.size() && !stop.load(std::memory_order_relaxed); ++i) {
                const std::unique_lock write(index.mutex);
                index.append(end, text[i], true, writer, std::span(text).first(i));
                ++written;
            }
            continue;
        }
        {
            const std::unique_lock write(index.mutex);
            index.add(text, 0, writer);
        }
        written += text.size();
        if (load.kind == Load::churn) {
            kept.push_back(text);
            if (kept.size() > 20) {
                index.remove(kept.front(), 0);
                kept.erase(kept.begin());
            }
        }
    }
}

void measure(std::size_t tokens, double seconds, const Load& load, int readers, bool own) {
    auto shared = std::make_shared<Index>(64);
    Index elsewhere(64);
    Texts history(1);
    std::uint32_t writer = 1;
    for (std::size_t n = 0; n < tokens; n += kTextTokens) {
        shared->add(history.text(), 0, writer);
        if (load.writers > 0 && !load.shared) elsewhere.add(history.text(), 0, writer);
        ++writer;
    }
    auto learner = std::make_shared<Learner>();
    std::atomic<bool> stop{false};
    std::vector<std::vector<float>> latencies(static_cast<std::size_t>(readers));
    std::vector<std::thread> threads;
    std::uint64_t written = 0;
    for (int w = 0; w < load.writers; ++w)
        threads.emplace_back([&] { write_on(load.shared ? *shared : elsewhere, load, stop, written, 99); });
    const auto began = Clock::now();
    for (int r = 0; r < readers; ++r)
        threads.emplace_back([&, r] {
            auto& mine = latencies[static_cast<std::size_t>(r)];
            mine.reserve(1 << 20);
            Texts texts(static_cast<std::uint32_t>(50 + r));
            CostCurve curve;
            for (int w = 0; w < 17; ++w) curve.push_back(1.0 + 0.02 * w);
            std::uint32_t id = 5000 + 1000 * static_cast<std::uint32_t>(r);
            while (!stop.load(std::memory_order_relaxed)) {
                const auto none = std::shared_ptr<Index>();
                Session session(own ? shared : none, {shared}, learner, id++, 16);
                session.append_context(texts.text(100));
                for (const Token token : texts.text(400)) {
                    if (stop.load(std::memory_order_relaxed)) break;
                    const auto t0 = Clock::now();
                    session.record_step(1.0, 1);
                    session.append({&token, 1}, true);
                    (void)session.draft(16, curve, Shape::chain);
                    mine.push_back(std::chrono::duration<float, std::micro>(Clock::now() - t0).count());
                }
                session.retract();
            }
        });
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
    stop.store(true);
    for (auto& t : threads) t.join();
    const double took = std::chrono::duration<double>(Clock::now() - began).count();
    std::vector<float> all;
    for (auto& l : latencies) all.insert(all.end(), l.begin(), l.end());
    std::printf("%-10s %7d  %8.1f %8.1f %8.1f %9.1f  %10.0f  %12.0f\n", load.name.c_str(), readers,
                percentile(all, 0.5), percentile(all, 0.9), percentile(all, 0.99), percentile(all, 0.999),
                static_cast<double>(all.size()) / took, static_cast<double>(written) / took);
    std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
    const auto tokens = static_cast<std::size_t>(argc > 1 ? std::atol(argv[1]) : 500000);
    const double seconds = argc > 2 ? std::atof(argv[2]) : 2.0;
    std::printf("%-10s %7s  %8s %8s %8s %9s  %10s  %12s\n", "writer", "readers", "p50 us", "p90", "p99",
                "p99.9", "steps/s", "written/s");
    for (const int readers : {1, 2, 4}) {
        measure(tokens, seconds, {"alone", 0, true, Load::tokens}, readers, false);
        measure(tokens, seconds, {"elsewhere", 1, false, Load::tokens}, readers, false);
        measure(tokens, seconds, {"tokens", 1, true, Load::tokens}, readers, false);
        measure(tokens, seconds, {"texts", 1, true, Load::texts}, readers, false);
        measure(tokens, seconds, {"churn", 1, true, Load::churn}, readers, false);
    }
    for (const int sessions : {1, 2, 4})
        measure(tokens, seconds, {"sessions", 0, true, Load::tokens}, sessions, true);
    return 0;
}
