package printable

import "testing"

// A name must not command the terminal, nor change the order of the characters around it.
func TestText(t *testing.T) {
	for in, want := range map[string]string{
		"default/web":                   "default/web",
		"\x1b[2J\x1b]0;owned\x07":       `\x1b[2J\x1b]0;owned\a`,
		"a\nb\rc\td\x7f\x00":            `a\nb\rc d\x7f\x00`,
		"\u009b31m":                     `\u009b31m`, // CSI in one character
		"abc\u202edcba":                 `abc\u202edcba`,
		"bad\xff\xfeutf8":               `bad\xff\xfeutf8`,
		"z\u0300\u0301":                 `z\u0300\u0301`,
		"\u00fcml\u00e4ut \u6771\u4eac": "\u00fcml\u00e4ut \u6771\u4eac",
		"zero\u200bwidth\ufeff":         `zero\u200bwidth\ufeff`,
	} {
		if got := Text(in); got != want {
			t.Errorf("%q became %q, want %q", in, got, want)
		}
	}
}

func FuzzText(f *testing.F) {
	f.Add("\x1b[31m\xff\u202e")
	f.Fuzz(func(t *testing.T, in string) {
		out := Text(in)
		for _, r := range out {
			if r < ' ' || r >= 0x7f && r < 0xa0 {
				t.Fatalf("%q became %q", in, out)
			}
		}
		if Text(out) != out {
			t.Fatalf("%q is not printable", out)
		}
	})
}
