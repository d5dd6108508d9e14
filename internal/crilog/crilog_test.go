package crilog_test

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berthrun/berth/internal/crilog"
)

const stamp = "2026-11-20T13:52:01.000000042Z"

func at(t testing.TB) time.Time {
	t.Helper()
	when, err := time.Parse(time.RFC3339Nano, stamp)
	if err != nil {
		t.Fatal(err)
	}
	// The node's time zone must not affect the output.
	return when.In(time.FixedZone("east", 3600))
}

func TestAppendComplete(t *testing.T) {
	for _, c := range []struct {
		name, raw, want string
		done            int
	}{
		{"nothing", "", "", 0},
		{"one line", "abc\n", "F abc\n", 4},
		{"empty lines", "\n\n", "F \nF \n", 2},
		{"unfinished line waits", "ab\ncd", "F ab\n", 3},
		{"shorter by one", "1234567\n", "F 1234567\n", 8},
		{"exactly full, ends", "12345678\n", "F 12345678\n", 9},
		{"exactly full, end unknown: waits", "12345678", "", 0},
		{"exactly full, goes on", "123456789", "P 12345678\n", 8},
		{"pieces", "12345678abcdefghXY\nz", "P 12345678\nP abcdefgh\nF XY\n", 19},
		{"pieces, last one full", "12345678abcdefgh\n", "P 12345678\nF abcdefgh\n", 17},
		{"bytes that are no text", "\x00\xff\r\n", "F \x00\xff\r\n", 4},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := crilog.NewRenderer(crilog.Stderr, at(t), 8)
			out, done := r.AppendComplete([]byte("before "), []byte(c.raw), 1<<20)
			want := "before "
			if c.want != "" {
				want += stamp + " stderr " + strings.ReplaceAll(strings.TrimSuffix(c.want, "\n"), "\n", "\n"+stamp+" stderr ") + "\n"
			}
			if diff := cmp.Diff(want, string(out)); diff != "" || done != c.done {
				t.Errorf("done %d, want %d; (-want +got)\n%s", done, c.done, diff)
			}
			if lines := strings.Count(c.want, "\n"); r.Lines() != lines {
				t.Errorf("Lines() = %d, want %d", r.Lines(), lines)
			}
		})
	}
}

func TestAppendCompleteStopsAtLimit(t *testing.T) {
	raw := bytes.Repeat([]byte("\n"), 100)
	out, done := crilog.NewRenderer(crilog.Stdout, at(t), 8).AppendComplete(nil, raw, 3*crilog.Overhead)
	if done != 3 || len(out) != 3*crilog.Overhead {
		t.Errorf("done %d with %d bytes, want 3 lines", done, len(out))
	}
}

func TestAppendAllEndsWithPartialLine(t *testing.T) {
	out := crilog.NewRenderer(crilog.Stdout, at(t), 0).AppendAll(nil, []byte("a\nlast words"))
	want := stamp + " stdout F a\n" + stamp + " stdout P last words\n"
	if diff := cmp.Diff(want, string(out)); diff != "" {
		t.Error(diff)
	}
}

func TestParse(t *testing.T) {
	for line, want := range map[string]crilog.Line{
		stamp + " stdout F text":                                {Time: at(t), Text: []byte("text")},
		stamp + " stderr P text with spaces \n":                 {Time: at(t), Stream: crilog.Stderr, Partial: true, Text: []byte("text with spaces ")},
		stamp + " stdout F ":                                    {Time: at(t), Text: []byte("")},
		"2026-11-20T14:52:01.000000042+01:00 stdout F:x:y text": {Time: at(t), Text: []byte("text")},
	} {
		got, err := crilog.Parse([]byte(line))
		if err != nil {
			t.Errorf("%q: %v", line, err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%q (-want +got)\n%s", line, diff)
		}
	}
	for _, line := range []string{
		"", "text", stamp, stamp + " stdout", stamp + " stdout F", stamp + " stdin F text",
		stamp + " stdout X text", stamp + " stdout PF text", "yesterday stdout F text", "{\"log\":\"x\"}",
	} {
		if got, err := crilog.Parse([]byte(line)); !errors.Is(err, crilog.ErrMalformed) {
			t.Errorf("%q: %+v, %v, want ErrMalformed", line, got, err)
		}
	}
}

func TestReaderFollows(t *testing.T) {
	long := strings.Repeat("x", 100_000)
	var file bytes.Buffer
	r := crilog.NewReader(iotest.OneByteReader(&file))
	expect := func(text string, partial bool) {
		t.Helper()
		line, err := r.Next()
		if err != nil || string(line.Text) != text || line.Partial != partial {
			t.Fatalf("got %.40q, %v, %v, want %.40q", line.Text, line.Partial, err, text)
		}
	}
	expectEnd := func() {
		t.Helper()
		if _, err := r.Next(); !errors.Is(err, io.EOF) {
			t.Fatalf("got %v, want io.EOF", err)
		}
	}
	expectEnd()
	file.WriteString(stamp + " stdout F one\n" + stamp + " stdout P tw")
	expect("one", false)
	expectEnd()
	if got := string(r.Rest()); got != stamp+" stdout P tw" {
		t.Errorf("Rest() = %q", got)
	}
	file.WriteString("o\nrubbish\n" + stamp + " stdout F " + long + "\n" + stamp + " stdout F after\n")
	expect("two", true)
	if _, err := r.Next(); !errors.Is(err, crilog.ErrMalformed) {
		t.Fatalf("rubbish: %v, want ErrMalformed", err)
	}
	expect(long, false)
	expect("after", false)
	expectEnd()
}

func TestTailOffset(t *testing.T) {
	long := strings.Repeat("x", 70_000)
	log := "a\nbb\n" + long + "\nccc\n"
	for n, want := range map[int]string{0: "", 1: "ccc\n", 2: long + "\nccc\n", 3: "bb\n" + long + "\nccc\n", 4: log, 9: log} {
		off, err := crilog.TailOffset(strings.NewReader(log), int64(len(log)), n)
		if err != nil || log[off:] != want {
			t.Errorf("last %d lines start at %d, %v", n, off, err)
		}
	}
	if off, err := crilog.TailOffset(strings.NewReader("a\nb"), 3, 1); err != nil || off != 2 {
		t.Errorf("unfinished last line: starts at %d, %v", off, err)
	}
}

// FuzzRender checks the three guarantees of the renderer. No byte is lost or added. No line is too
// long. The result depends only on the bytes, and not on how the input was split.
func FuzzRender(f *testing.F) {
	f.Add([]byte("one\ntwo\n"), 8, 5, 100)
	f.Add([]byte("12345678\n12345678x"), 8, 8, 1)
	f.Add([]byte("12345678"), 8, 1, 40)
	f.Add([]byte("\n\n\n"), 1, 2, 0)
	f.Fuzz(func(t *testing.T, raw []byte, maxText, step, limit int) {
		if maxText < 1 || maxText > 1<<20 || step < 1 || limit < 1 {
			t.Skip("not what callers ask for")
		}
		var log []byte
		consumed := 0
		for seen := 0; seen < len(raw); {
			seen = min(seen+step, len(raw))
			for {
				window := raw[consumed:seen]
				out, done := crilog.NewRenderer(crilog.Stdout, time.Unix(1, 2), maxText).AppendComplete(nil, window, limit)
				again := crilog.NewRenderer(crilog.Stdout, time.Unix(1, 2), maxText).AppendAll(nil, window[:done])
				if !bytes.Equal(out, again) {
					t.Fatalf("first %q, repeated %q", out, again)
				}
				log = append(log, out...)
				consumed += done
				if done == 0 {
					break
				}
			}
			if seen-consumed > maxText {
				t.Fatalf("%d bytes wait, more than one line has", seen-consumed)
			}
		}
		log = crilog.NewRenderer(crilog.Stdout, time.Unix(1, 2), maxText).AppendAll(log, raw[consumed:])
		if got := textOf(t, log, maxText); !bytes.Equal(got, raw) {
			t.Fatalf("the log says %q, the container wrote %q", got, raw)
		}
	})
}

func textOf(t *testing.T, log []byte, maxText int) []byte {
	t.Helper()
	var text []byte
	r := crilog.NewReader(bytes.NewReader(log))
	for {
		line, err := r.Next()
		if errors.Is(err, io.EOF) {
			if len(r.Rest()) > 0 {
				t.Fatalf("unfinished log line %q", r.Rest())
			}
			return text
		}
		if err != nil {
			t.Fatal(err)
		}
		if len(line.Text) > maxText {
			t.Fatalf("line of %d bytes, more than %d", len(line.Text), maxText)
		}
		text = append(text, line.Text...)
		if !line.Partial {
			text = append(text, '\n')
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(stamp + " stdout F text\n"))
	f.Add([]byte(stamp + " stderr P:x text"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		line, err := crilog.Parse(raw)
		if err != nil {
			if !errors.Is(err, crilog.ErrMalformed) {
				t.Fatalf("unexpected error: %v", err)
			}
			return
		}
		if !bytes.HasSuffix(bytes.TrimSuffix(raw, []byte("\n")), line.Text) {
			t.Fatalf("text %q is not in %q", line.Text, raw)
		}
	})
}

func BenchmarkRender(b *testing.B) {
	raw := bytes.Repeat([]byte(strings.Repeat("x", 127)+"\n"), 512)
	out := make([]byte, 0, 2*len(raw))
	b.SetBytes(int64(len(raw)))
	for b.Loop() {
		r := crilog.NewRenderer(crilog.Stdout, time.Unix(0, 0), 0)
		if _, done := r.AppendComplete(out, raw, 2*len(raw)); done != len(raw) {
			b.Fatal(done)
		}
	}
}
