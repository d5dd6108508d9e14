package logs

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"
)

const (
	stamp1 = "2026-01-02T03:04:05.000000001Z "
	stamp2 = "2026-01-02T03:04:05.000000002Z "
)

func frameOf(kind byte, payload string) string {
	header := make([]byte, frameHeader)
	header[0] = kind
	binary.BigEndian.PutUint32(header[4:], uint32(len(payload)))
	return string(header) + payload
}

// decoded is a message that outlives the decoder.
type decoded struct {
	At     int64
	Stream string
	Raw    string
}

// at is a time on the second of stamp1.
func at(nanos int64) int64 {
	first, err := parseStamp([]byte(stamp1))
	if err != nil {
		panic(err)
	}
	return first - 1 + nanos
}

// decodeAll reads all messages and joins neighbours of one stream and time, unless a line ends
// between them: a decoder may deliver text in any parts.
func decodeAll(d decoder) (all []decoded, err error) {
	for {
		m, err := d.next()
		if err != nil {
			return all, err
		}
		got := decoded{m.at, m.stream.String(), string(m.raw)}
		if n := len(all); n > 0 && all[n-1].At == got.At && all[n-1].Stream == got.Stream && !strings.HasSuffix(all[n-1].Raw, "\n") {
			all[n-1].Raw += got.Raw
			continue
		}
		all = append(all, got)
	}
}

func TestFrames(t *testing.T) {
	long := strings.Repeat("x", 3*readBuffer)
	for _, c := range []struct {
		name, in string
		want     []decoded
		err      error
	}{
		{"nothing", "", nil, io.EOF},
		{"both streams", frameOf(1, stamp1+"a\n") + frameOf(2, stamp2+"b\n"), []decoded{{at(1), "stdout", "a\n"}, {at(2), "stderr", "b\n"}}, io.EOF},
		{"empty line", frameOf(1, stamp1+"\n"), []decoded{{at(1), "stdout", "\n"}}, io.EOF},
		{"empty frames", frameOf(1, "") + frameOf(1, stamp1) + frameOf(1, stamp2+"a\n"), []decoded{{at(2), "stdout", "a\n"}}, io.EOF},
		{"longer than the buffer", frameOf(1, stamp1+long) + frameOf(1, stamp2+"b\n"), []decoded{{at(1), "stdout", long}, {at(2), "stdout", "b\n"}}, io.EOF},
		{"ends in a header", frameOf(1, stamp1+"a\n") + "\x01\x00", []decoded{{at(1), "stdout", "a\n"}}, io.ErrUnexpectedEOF},
		{"ends in a message", frameOf(1, stamp1+"abc\n")[:20], nil, io.ErrUnexpectedEOF},
		{"ends in a long message", frameOf(1, stamp1+long)[:readBuffer+100], nil, io.ErrUnexpectedEOF},
		{"stdin", frameOf(0, stamp1+"a\n"), nil, errMalformed},
		{"unknown stream", frameOf(4, stamp1+"a\n"), nil, errMalformed},
		{"no padding", "\x01\x01\x00\x00\x00\x00\x00\x00", nil, errMalformed},
		{"too long", "\x01\x00\x00\x00\xff\xff\xff\xff", nil, errMalformed},
		{"no time", frameOf(1, "hello world, this is a line without a time\n"), nil, errMalformed},
		{"short time", frameOf(1, "2026-01-02T03:04:05Z a\n"), nil, errMalformed},
		{"old time", frameOf(1, "0001-01-01T00:00:00.000000000Z a\n"), nil, errMalformed},
		{"an answer of http", "HTTP/1.1 500 Internal Server Error\r\n", nil, errMalformed},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, in := range []io.Reader{strings.NewReader(c.in), iotest.OneByteReader(strings.NewReader(c.in))} {
				got, err := decodeAll(newFrames(in))
				if diff := cmp.Diff(c.want, got); diff != "" || !errors.Is(err, c.err) {
					t.Errorf("error %v, want %v; (-want +got)\n%s", err, c.err, diff)
				}
			}
		})
	}
}

func TestErrorOfTheEngineInFrames(t *testing.T) {
	_, err := decodeAll(newFrames(strings.NewReader(frameOf(3, "Error grabbing logs: broken\n"))))
	var reported *engineError
	if !errors.As(err, &reported) || reported.text != "Error grabbing logs: broken" {
		t.Errorf("got %v", err)
	}
}

func TestTerminal(t *testing.T) {
	piece := strings.Repeat("x", pieceSize)
	for _, c := range []struct {
		name, in string
		want     []decoded
		err      error
	}{
		{"nothing", "", nil, io.EOF},
		{"lines", stamp1 + "a\r\n" + stamp2 + "\r\n", []decoded{{at(1), "stdout", "a\r\n"}, {at(2), "stdout", "\r\n"}}, io.EOF},
		{"parts of one line", stamp1 + piece + stamp1 + "end\n" + stamp2 + "b\n", []decoded{{at(1), "stdout", piece + "end\n"}, {at(2), "stdout", "b\n"}}, io.EOF},
		{"the end is a part", stamp1 + piece + stamp1 + piece + stamp1 + "\n", []decoded{{at(1), "stdout", piece + piece + "\n"}}, io.EOF},
		{"parts of another length", stamp1 + "ab" + stamp1 + "cd\n", []decoded{{at(1), "stdout", "abcd\n"}}, io.EOF},
		{"parts with times of their own", stamp1 + piece + stamp2 + "end\n", []decoded{{at(1), "stdout", piece}, {at(2), "stdout", "end\n"}}, io.EOF},
		{"a longer part", stamp1 + piece + "20 more\n" + stamp2 + "b\n", []decoded{{at(1), "stdout", piece + "20 more\n"}, {at(2), "stdout", "b\n"}}, io.EOF},
		{"text like a time", stamp1 + "see " + stamp2 + "there\n", []decoded{{at(1), "stdout", "see " + stamp2 + "there\n"}}, io.EOF},
		{"text like the beginning of the time", stamp1 + "20 2026-01-02T03:04:05.0\n" + stamp2 + "2026-0", []decoded{{at(1), "stdout", "20 2026-01-02T03:04:05.0\n"}, {at(2), "stdout", "2026-0"}}, io.EOF},
		{"a part that ends like the time", stamp1 + piece[:pieceSize-4] + "2026" + stamp1 + "b\n", []decoded{{at(1), "stdout", piece[:pieceSize-4] + "2026" + "b\n"}}, io.EOF},
		{"no end", stamp1 + "a\n" + stamp2 + "prompt$ ", []decoded{{at(1), "stdout", "a\n"}, {at(2), "stdout", "prompt$ "}}, io.EOF},
		{"ends in a time", stamp1 + "a\n" + stamp2[:10], []decoded{{at(1), "stdout", "a\n"}}, io.ErrUnexpectedEOF},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, in := range []io.Reader{strings.NewReader(c.in), iotest.OneByteReader(strings.NewReader(c.in))} {
				got, err := decodeAll(newTerminal(in))
				if diff := cmp.Diff(c.want, got); diff != "" || !errors.Is(err, c.err) {
					t.Errorf("error %v, want %v; (-want +got)\n%s", err, c.err, diff)
				}
			}
		})
	}
}

func TestErrorOfTheEngineInATerminal(t *testing.T) {
	got, err := decodeAll(newTerminal(strings.NewReader(stamp1 + "a\nError grabbing logs: unexpected end of file\n")))
	var reported *engineError
	if !errors.As(err, &reported) || len(got) != 1 {
		t.Errorf("got %v, %v", got, err)
	}
}

// A prompt is delivered before its line ends, and before more output comes.
func TestTerminalDoesNotWaitForMore(t *testing.T) {
	in, out := io.Pipe()
	defer in.Close()
	go out.Write([]byte(stamp1 + strings.Repeat("x", pieceSize) + "end\n"))
	d := newTerminal(in)
	var got []byte
	for !bytes.HasSuffix(got, []byte("end\n")) {
		m, err := d.next()
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, m.raw...)
	}
}

// FuzzFrames: garbage is an error of a known kind, and what frames say comes out again.
func FuzzFrames(f *testing.F) {
	f.Add([]byte(frameOf(1, stamp1+"a\n")), false)
	f.Add([]byte("\x01\x00\x00\x00\x7f\xff\xff\xff"), true)
	f.Fuzz(func(t *testing.T, raw []byte, wrap bool) {
		if wrap {
			raw = bytes.ReplaceAll(raw, []byte("\n"), nil)
			got, err := decodeAll(newFrames(strings.NewReader(frameOf(1, stamp1+string(raw)+"\n") + frameOf(2, stamp2+"b\n"))))
			if !errors.Is(err, io.EOF) || len(got) != 2 || got[0].Raw != string(raw)+"\n" {
				t.Fatalf("%q became %+v, %v", raw, got, err)
			}
			return
		}
		checkFault(t, newFrames(bytes.NewReader(raw)))
	})
}

// FuzzTerminal: as FuzzFrames, and a line that is cut into parts is the same line.
func FuzzTerminal(f *testing.F) {
	f.Add([]byte(stamp1+"a\n"), uint16(0))
	f.Add([]byte("20 2026-01-02T03"), uint16(5))
	f.Fuzz(func(t *testing.T, raw []byte, cut uint16) {
		if cut == 0 {
			checkFault(t, newTerminal(bytes.NewReader(raw)))
			return
		}
		raw = bytes.ReplaceAll(bytes.ReplaceAll(raw, []byte("\n"), nil), []byte(stamp1), nil)
		if len(raw) >= pieceSize || bytes.Contains(raw, []byte(stamp1[:4])) {
			t.Skip("parts may join to a time")
		}
		at := min(int(cut), len(raw))
		in := stamp1 + string(raw[:at]) + stamp1 + string(raw[at:]) + "\n" + stamp2 + "b\n"
		got, err := decodeAll(newTerminal(strings.NewReader(in)))
		if !errors.Is(err, io.EOF) || len(got) != 2 || got[0].Raw != string(raw)+"\n" || got[1].Raw != "b\n" {
			t.Fatalf("%q became %+v, %v", in, got, err)
		}
	})
}

func checkFault(t *testing.T, d decoder) {
	t.Helper()
	_, err := decodeAll(d)
	var reported *engineError
	if !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, errMalformed) && !errors.As(err, &reported) {
		t.Fatalf("unexpected error %v", err)
	}
}
