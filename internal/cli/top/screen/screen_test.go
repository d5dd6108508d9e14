package screen

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berthrun/berth/internal/printable"
	"github.com/berthrun/berth/test/harness/terminal"
)

func FuzzWidth(f *testing.F) {
	f.Add("\u6771~\xff")
	f.Fuzz(func(t *testing.T, in string) {
		out := printable.Text(in)
		for room := range 9 {
			if got := Width(Left(out, room)); got != room {
				t.Fatalf("%q in %d columns has %d", out, room, got)
			}
		}
	})
}

func TestColumns(t *testing.T) {
	for _, c := range []struct {
		text  string
		room  int
		left  string
		right string
	}{
		{"abc", 5, "abc  ", "  abc"},
		{"abcdef", 4, "abc~", "abc~"},
		{"\u6771\u4eac\u90fd", 4, "\u6771~ ", " \u6771~"}, // wide: the second does not fit beside the sign
		{"abc", 0, "", ""},
	} {
		if got := Left(c.text, c.room); got != c.left {
			t.Errorf("%q in %d is %q", c.text, c.room, got)
		}
		if got := Right(c.text, c.room); got != c.right {
			t.Errorf("%q in %d is %q", c.text, c.room, got)
		}
	}
	if got := From("abcdef", 2); got != "cdef" {
		t.Errorf("got %q", got)
	}
	if got := From("ab", 5); got != "" {
		t.Errorf("got %q", got)
	}
}

// Whatever was drawn before, the terminal shows the frame, and no line is broken.
func TestUpdatesMakeTheFrame(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		width, height := 5+random.IntN(40), 1+random.IntN(10)
		shown := terminal.NewScreen(width, height)
		s := Screen{Colour: true}
		shown.Write([]byte(enterScreen))
		for range 5 {
			var frame []Line
			for range height {
				line := Line{}
				for range random.IntN(4) {
					line = line.Add(strings.Repeat(string(rune('a'+random.IntN(3))), random.IntN(20)), Style(random.IntN(7)))
				}
				frame = append(frame, line)
			}
			shown.Write([]byte(s.update(frame, width)))
			var want []string
			for _, l := range frame {
				want = append(want, strings.TrimRight(cut(l.String(), width), " "))
			}
			got := shown.Lines()
			for i := range got {
				// A line is cut at the end of a span or at the edge.
				if len(frame[i].String()) <= width && got[i] != want[i] {
					t.Fatalf("the terminal shows %s", cmp.Diff(want, got))
				}
			}
			if shown.Fault != "" {
				t.Fatal(shown.Fault)
			}
		}
		shown.Write([]byte(leaveScreen))
		if shown.Second || !shown.Cursor || !shown.Wrap {
			t.Fatal("the terminal is not what it was")
		}
	}
}

// An unchanged frame writes nothing, and a changed line only itself.
func TestOnlyChangesAreWritten(t *testing.T) {
	s := Screen{}
	frame := []Line{Text("one", Plain), Text("two", Good)}
	s.update(frame, 80)
	if got := s.update(frame, 80); got != "" {
		t.Errorf("an unchanged frame wrote %q", got)
	}
	frame[1] = Text("2", Good)
	if got := s.update(frame, 80); got != "\x1b[2;1H2\x1b[K" {
		t.Errorf("without colours a line is %q", got)
	}
}

func TestKeys(t *testing.T) {
	for in, want := range map[string][]Key{
		"q":                {{Char: 'q'}},
		"\x1b[A\x1bOB":     {{Name: UpKey}, {Name: DownKey}},
		"\x1b[5~\x1b[6~":   {{Name: PageUpKey}, {Name: PageDownKey}},
		"\x1b[1~\x1b[F":    {{Name: HomeKey}, {Name: EndKey}},
		"\x1b[1;5A":        {{Name: UnknownKey}},
		"\x03\x1a\x0c\x15": {{Name: InterruptKey}, {Name: SuspendKey}, {Name: RedrawKey}, {Name: ClearKey}},
		"\r\x7f\x08":       {{Name: EnterKey}, {Name: BackspaceKey}, {Name: BackspaceKey}},
		"\xc3\xa4":         {{Char: 'ä'}},
		"\xffq":            {{Name: UnknownKey}, {Char: 'q'}},
		"\x1bq":            {{Name: EscapeKey}, {Char: 'q'}},
		"\x00":             {{Name: UnknownKey}},
	} {
		got, rest := parseKeys([]byte(in))
		if diff := cmp.Diff(want, got); diff != "" || len(rest) > 0 {
			t.Errorf("%q: %s, rest %q", in, diff, rest)
		}
	}
	for in, want := range map[string][]Key{"\x1b": {{Name: EscapeKey}}, "\x1b[": {{Name: EscapeKey}, {Char: '['}}} {
		keys, rest := parseKeys([]byte(in))
		if len(keys) != 0 || string(rest) != in {
			t.Errorf("%q: got %v and %q before its end", in, keys, rest)
		}
		if diff := cmp.Diff(want, endKeys(rest)); diff != "" {
			t.Errorf("%q: %s", in, diff)
		}
	}
}

// Input has any bytes. None is lost for ever, and no sequence grows without a bound.
func FuzzKeys(f *testing.F) {
	f.Add([]byte("\x1b[1;2;3;"))
	f.Fuzz(func(t *testing.T, in []byte) {
		var pending []byte
		for _, c := range in {
			var keys []Key
			keys, pending = parseKeys(append(pending, c))
			if len(pending) > maxSequence+1 {
				t.Fatalf("%d bytes wait behind %v", len(pending), keys)
			}
		}
	})
}
