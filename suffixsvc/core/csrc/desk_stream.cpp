#include "desk_stream.h"

#include <sys/socket.h>
#include <sys/types.h>

#include <algorithm>
#include <cerrno>
#include <chrono>

namespace suffixsvc {

namespace {

constexpr std::size_t kLengthBytes = 4;  // u32, little endian
constexpr std::size_t kReadBytes = 1 << 16;
#ifdef MSG_NOSIGNAL
constexpr int kSendFlags = MSG_NOSIGNAL;
#else
constexpr int kSendFlags = 0;  // Python ignores SIGPIPE
#endif

std::size_t length_of(const char* bytes) {
    std::size_t length = 0;
    for (std::size_t i = kLengthBytes; i-- > 0;) length = length << 8 | static_cast<unsigned char>(bytes[i]);
    return length;
}

// Of the clock that Python's time.monotonic() reads.
double seconds_now() {
    const auto since = std::chrono::steady_clock::now().time_since_epoch();
    return std::chrono::duration<double>(since).count();
}

}  // namespace

DeskStream::DeskStream(Desk& desk, int socket, std::size_t most)
    : desk_(desk), socket_(socket), most_(most) {}

Unanswered DeskStream::next() {
    while (true) {
        while (const auto message = take()) {
            std::optional<DeskReply> reply = desk_.answer(*message, seconds_now());
            if (!reply || !reply->items.empty()) {
                Unanswered found{Unanswered::Kind::message, std::string(*message), {}, 0};
                if (reply) found.items = std::move(reply->items);
                return found;
            }
            if (!send(reply->bytes)) return {};
        }
        if (wanted_ > kLengthBytes + most_)
            return {Unanswered::Kind::too_long, {}, {}, wanted_ - kLengthBytes};
        if (!read()) return {};
    }
}

std::optional<std::string_view> DeskStream::take() {
    const std::size_t here = end_ - begin_;
    if (here < kLengthBytes) return std::nullopt;
    const std::size_t length = length_of(held_.data() + begin_);
    wanted_ = kLengthBytes + length;
    if (length > most_ || here < wanted_) return std::nullopt;
    const std::string_view message(held_.data() + begin_ + kLengthBytes, length);
    begin_ += wanted_;
    wanted_ = 0;
    return message;
}

bool DeskStream::read() {
    make_room();
    ssize_t n = 0;
    do n = ::recv(socket_, held_.data() + end_, held_.size() - end_, 0);
    while (n < 0 && errno == EINTR);
    if (n > 0) end_ += static_cast<std::size_t>(n);
    return n > 0;
}

void DeskStream::make_room() {
    std::copy(held_.begin() + static_cast<std::ptrdiff_t>(begin_),
              held_.begin() + static_cast<std::ptrdiff_t>(end_), held_.begin());
    end_ -= begin_;
    begin_ = 0;
    if (end_ == 0 && held_.size() != kReadBytes) {  // what one long message took is given back
        held_ = std::vector<char>(kReadBytes);
    } else if (end_ ==
               held_.size()) {  // twice as much at a time: the word of a client alone reserves nothing
        held_.resize(2 * held_.size());
    }
}

bool DeskStream::send(std::string_view message) {
    std::string frame(kLengthBytes, '\0');
    for (std::size_t i = 0; i < kLengthBytes; ++i)
        frame[i] = static_cast<char>(message.size() >> 8 * i & 0xff);
    frame += message;
    std::size_t at = 0;
    while (at < frame.size()) {
        const ssize_t n = ::send(socket_, frame.data() + at, frame.size() - at, kSendFlags);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return false;
        at += static_cast<std::size_t>(n);
    }
    return true;
}

}  // namespace suffixsvc
