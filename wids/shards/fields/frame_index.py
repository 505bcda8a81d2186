"""Find the frames of a film by number and by time: those of decoding it from the beginning.

No number is computed from a time. Where the container lists all packets (mp4, mov, avi), a key
frame has the number of its entry, plus the packets behind it that are shown before it. Elsewhere
(mkv, webm, lists with gaps) all packets are read once, and a key frame has the rank of its time.
Where a film begins with packets that give no frame, since it was cut, the frames up to a second key
frame are decoded and counted. Where none of this holds, all frames are decoded.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from itertools import chain, dropwhile, islice, takewhile
from typing import IO, Any, Final

import numpy as np

from wids.shards.fields.audio import opened_media
from wids.shards.fields.safety import check_time

MAX_PIXELS: Final = 1 << 27
"""Most pixels of a frame: 16,384 by 8,192."""

NO_FRAMES: Final = "expected a video with frames, found none that can be decoded"

_MAX_FRAMES: Final = 1 << 24
"""Most frames that are counted by their packets, whose times are in memory."""
_MAX_REORDERED: Final = 64
"""Most packets among which those shown before a key frame are looked for; codecs reorder 16."""
_NVOP_NBYTES: Final = 20
"""Packets of MPEG-4 that are shorter may state that there is no frame."""
_MAX_ERROR_S: Final = 0.0005
"""Times are rounded, by half a tick, and to milliseconds in mkv."""
_END: Final = 1 << 60
"""Ticks that no film has."""
_NUM_SEEKS: Final = 3
"""Key frames that are tried: the one before a frame may be shown after it, or be none."""


class Film:
    """The first video stream of a file, decoded from the beginning or from a key frame on.

    Times are in ticks of the stream. What an iterator has not yielded is lost when another one is
    made. Methods raise what PyAV raises, and `ValueError` when nobody waits for this thread.

    Args:
        file: A file that can seek.
        max_pixels: Most pixels of a frame, if fewer than 134 million.

    Attributes:
        container: PyAV's container.
        stream: Its first video stream.

    Raises:
        ModuleNotFoundError: PyAV is not installed.
        ValueError: It has no video, more than 64 streams, or frames that are too large.
        Exception: It is not a film; any type.
    """

    def __init__(self, file: IO[bytes], max_pixels: int) -> None:
        self._file = file
        self._max_pixels = max_pixels
        self._open()

    def _open(self) -> None:
        self._file.seek(0)
        self.container = opened_media(self._file, min(self._max_pixels, MAX_PIXELS))
        try:
            self.stream = video_stream(self.container)
            # One thread: a loader has a worker for each processor.
            self.stream.codec_context.thread_count = 1
            self._packets = self.container.demux(self.stream)
            self._first = _with_earlier(self._packets)  # FFmpeg has read them, to probe the file
        except BaseException:
            self.container.close()
            raise
        self._is_at_start = True

    @cached_property
    def num_frames(self) -> int:
        """The number of frames."""
        if self._order is None or self._num_lost is None:
            return self._counted[0]
        return len(self._order) - self._num_lost

    @cached_property
    def start(self) -> int:
        """When the first frame is shown."""
        if self._is_whole:
            return int(self._first[0].pts)
        for time, _ in self._timed(self.from_start()):
            return int(time)
        raise ValueError(NO_FRAMES)

    @cached_property
    def end(self) -> int:
        """When the last frame ends."""
        if not self.can_seek:
            return self._counted[1]
        start = self.start  # before anything is read, since it may begin again
        packets = self._sought(_END)
        rest = chain(packets, self._packets) if packets else self._all_packets()
        return max((self.end_of(packet) for packet in rest if not packet.is_discard), default=start)

    @cached_property
    def step(self) -> int:
        """How long a frame is shown, by the rate of the film."""
        rate = self.stream.average_rate or self.stream.guessed_rate
        return max(1, round(float(1 / (rate * self.stream.time_base))))

    def tick(self, seconds: float) -> int:
        """Return a time that is counted from the first frame."""
        tick_s = float(self.stream.time_base)
        return self.start + int((seconds + min(tick_s / 2, _MAX_ERROR_S)) / tick_s)

    def numbered(self, number: int) -> Iterator[tuple[int, Any]]:
        """Return numbers and frames, from one that is not after ``number`` on."""
        beginning = None
        if self._order and self._num_lost is not None:
            mark = self._order[min(number + self._num_lost, len(self._order) - 1)]
            beginning = self._begun(self._tick(mark), self._number, number)
        first, frames = beginning or (0, self.from_start())
        return enumerate(frames, first)

    def timed(self, tick: int) -> Iterator[tuple[int, Any]]:
        """Return times and frames, from one that is not after ``tick`` on, or from the first."""
        found = self._begun(tick, lambda packets: packets[0].pts, tick) if self.can_seek else None
        return self._timed(self.from_start() if found is None else found[1])

    def _begun(
        self, tick: int, place: Callable[[list[Any]], int | None], last: int
    ) -> tuple[int, Iterator[Any]] | None:
        """Return the place of a key frame near a time and the frames from it on.

        Args:
            tick: The time.
            place: Returns the place of a key frame, of its packet and those that may be shown
                earlier.
            last: The last place that it may have.
        """
        for _ in range(_NUM_SEEKS):
            packets = self._sought(tick)
            if not packets:
                return None
            found = place(packets)
            if found is not None and found <= last and (frames := self._from_key(packets)):
                return found, frames
            tick = (packets[0].pts if packets[0].dts is None else packets[0].dts) - 1
        return None

    def shown_from(self, tick: int) -> Iterator[Any]:
        """Return frames, from the one on the screen at a time on."""
        timed = self.timed(tick)
        shown: list[tuple[int, Any]] = []
        for pair in timed:
            if shown and pair[0] > tick:
                shown.append(pair)
                break
            shown = [pair]
        return (frame for _, frame in chain(shown, timed))

    def from_start(self) -> Iterator[Any]:
        """Return all frames."""
        return self._decoded(self._all_packets())

    def end_of(self, timed: Any) -> int:
        """Return when a frame or packet ends."""
        check_time()
        return self.start if timed.pts is None else timed.pts + (timed.duration or self.step)

    def close(self) -> None:
        """Release the decoder."""
        self._packets.close()  # which would crash on a closed container
        self.container.close()

    def _all_packets(self) -> Iterator[Any]:
        if not self._is_at_start:
            self.close()
            self._open()
        self._is_at_start = False
        return chain(self._first, self._packets)

    def _decoded(self, packets: Iterator[Any]) -> Iterator[Any]:
        for packet in packets:
            check_time()
            yield from packet.decode()

    def _timed(self, frames: Iterator[Any]) -> Iterator[tuple[int, Any]]:
        return ((frame.pts, frame) for frame in frames if frame.pts is not None)

    @cached_property
    def _counted(self) -> tuple[int, int]:
        """The number of frames, and when the last one ends, by decoding them."""
        count, end = 0, self.start
        for frame in self.from_start():
            count, end = count + 1, max(end, self.end_of(frame))
        return count, end

    @cached_property
    def _is_whole(self) -> bool:
        """Whether the film begins with a key frame and nothing that needs frames before it."""
        return _is_key(self._first) and not _num_earlier(self._first)

    @cached_property
    def can_seek(self) -> bool:
        """Whether packets state when they are shown, and key frames can be found by time."""
        name, codec = self.container.format.name, self.stream.codec_context
        # An avi states no times. FFmpeg knows which frames are reordered, but not in these codecs.
        is_guessed = name == "avi" and codec.has_b_frames and codec.name in ("h264", "hevc")
        return name.startswith(("mov", "matroska", "avi")) and not is_guessed

    @cached_property
    def is_listed(self) -> bool:
        """Whether the container lists all packets: mkv lists few, DASH those of its first part."""
        entries = getattr(self.stream, "index_entries", ())  # of PyAV 17 and later
        # VP8 has packets that give no frame, which their bytes alone show.
        is_hidden = self.stream.codec_context.name == "vp8"
        if len(entries) < 2 or is_hidden or self.container.format.name.startswith("matroska"):
            return False
        first, before, last = (entries[place].timestamp for place in (0, -2, -1))
        step = max((last - first) // (len(entries) - 1), last - before)
        return bool((self.stream.duration or _END) - (last - first) <= 2 * step)

    def _sought(self, tick: int) -> list[Any]:
        """Seek to a key frame; return its packet and those that may be shown earlier, or []."""
        import av

        self._is_at_start = False
        try:
            self.container.seek(tick, stream=self.stream)
            self._packets = self.container.demux(self.stream)
            packets = _with_earlier(self._packets)
        except av.FFmpegError:  # there is none that early
            return []
        return packets if _is_key(packets) else []

    def _from_key(self, packets: list[Any]) -> Iterator[Any] | None:
        """Return frames from a key frame on; None if decoding cannot begin there after all."""
        key = packets[0].pts
        # Those that are shown earlier would be decoded without the frames that they need.
        decoded = self._decoded(chain(packets, self._packets))
        frames = (frame for frame in decoded if frame.pts is None or frame.pts >= key)
        first = next(dropwhile(lambda frame: frame.pts is None, frames), None)
        # A container may call any packet a key frame: P and B frames are none.
        if first is None or first.pts != key or int(first.pict_type) > 1:
            return None
        return chain([first], frames)

    @cached_property
    def _order(self) -> Sequence[int] | None:
        """A mark for each packet that gives a frame: its place in the list, or its time; ascending.

        None where decoding everything alone tells which do.

        Raises:
            ValueError: It has more than 16 million frames.
        """
        if not self.can_seek:
            return None
        if self.is_listed:
            return self._places()
        kept = getattr(getattr(self._file, "raw", None), "kept", None)  # of `open_field`
        if kept is None:
            return self._times()
        return array("q", kept(lambda: bytes(self._times() or b""))) or None

    @cached_property
    def _num_lost(self) -> int | None:
        """How many packets of the beginning give no frame, since the film was cut, if known."""
        if self._is_whole:
            return 0
        rest = islice(self._all_packets(), 1, None)
        second = next((packet for packet in rest if packet.is_keyframe), None)
        packets = [] if second is None else _with_earlier(chain([second], rest))
        place = self._place(packets) if packets and _is_key(packets) else None
        if place is None:
            return None
        key = packets[0].pts
        before = takewhile(lambda frame: frame.pts is None or frame.pts < key, self.from_start())
        return place - sum(1 for _ in before)

    def _number(self, packets: list[Any]) -> int | None:
        """Return the number of a key frame, if it is known, of its packet and those behind it."""
        is_cut = not self._is_whole and packets[0].pts == self._first[0].pts
        place = None if is_cut else self._place(packets)
        return None if place is None or self._num_lost is None else place - self._num_lost

    def _place(self, packets: list[Any]) -> int | None:
        """Return how many packets that give a frame are shown before a key frame, if known."""
        order = self._order or ()
        if not self.is_listed:
            place = bisect_left(order, packets[0].pts)
            return place if packets[0].pts in order[place : place + 1] else None
        entries, stamp = self.stream.index_entries, packets[0].dts
        at = bisect_left(entries, stamp, key=lambda entry: entry.timestamp)
        near = range(at, min(at + 2, len(entries)))
        if [entries[each].timestamp for each in near].count(stamp) != 1:
            return None
        return bisect_left(order, at) + _num_earlier(packets)

    def _tick(self, mark: int) -> int:
        """Return about when the frame of a mark is shown."""
        if not self.is_listed:
            return mark
        first = self._first[0]  # the list has when packets are decoded
        delay = 0 if first.pts is None or first.dts is None else first.pts - first.dts
        return int(self.stream.index_entries[mark].timestamp + delay)

    def _places(self) -> Sequence[int] | None:
        entries = self.stream.index_entries
        is_mpeg4 = self.stream.codec_context.name == "mpeg4"
        # A list of edits leaves out packets near both ends, or else changes how many there are.
        near = range(min(_MAX_REORDERED, len(entries)))
        is_edited = len(entries) != self.stream.frames or any(
            entries[place].is_discard for each in near for place in (each, -1 - each)
        )
        if not (is_mpeg4 or is_edited):
            return range(len(entries))
        places = array("q")
        for place, entry in enumerate(entries):
            if entry.is_discard:
                continue
            if is_mpeg4 and entry.size < _NVOP_NBYTES:
                return None
            places.append(place)
        return places

    def _times(self) -> array[int] | None:
        codec = self.stream.codec_context.name
        times = array("q")
        for packet in self._all_packets():
            check_time()
            if packet.is_discard or not packet.size:
                continue
            if packet.pts is None or (codec == "mpeg4" and packet.size < _NVOP_NBYTES):
                return None
            if codec == "vp8" and not memoryview(packet)[0] & 0x10:  # it is not shown
                continue
            times.append(packet.pts)
            if len(times) > _MAX_FRAMES:
                raise ValueError(f"expected at most {_MAX_FRAMES} frames, found more")
        ordered = np.sort(np.array(times, np.int64))
        return None if (np.diff(ordered) <= 0).any() else array("q", ordered.tobytes())


def _with_earlier(packets: Iterator[Any]) -> list[Any]:
    """Return a packet, and those behind it up to one that cannot be shown before it.

    Most films need the first alone: no packet is shown before it is decoded.
    """
    found: list[Any] = []
    for packet in islice(packets, 1 + _MAX_REORDERED):
        found.append(packet)
        shown = found[0].pts
        if shown is None or (packet.dts is not None and packet.dts >= shown):
            break
    return found


def _is_key(packets: list[Any]) -> bool:
    """Return whether decoding can begin with the first of some packets."""
    first = packets[0]
    is_shown = first.pts is not None and not first.is_discard
    return bool(is_shown and first.is_keyframe and len(packets) <= _MAX_REORDERED)


def _num_earlier(packets: list[Any]) -> int:
    """Return how many of some packets are shown before the first."""
    shown = packets[0].pts
    return sum(
        packet.pts is not None and packet.pts < shown and not packet.is_discard
        for packet in packets
    )


def video_stream(container: Any) -> Any:
    """Return the first video stream of a container, within limits."""
    streams = container.streams
    if not streams.video:
        raise ValueError(f"expected a video, found {len(streams)} streams without video")
    stream = streams.video[0]
    if not 1 <= stream.width * stream.height <= MAX_PIXELS:
        raise ValueError(
            f"expected frames of 1 to {MAX_PIXELS} pixels, found {stream.width} by {stream.height}"
        )
    if not (stream.average_rate or stream.guessed_rate):
        raise ValueError("expected a video with a frame rate, found none")
    return stream
