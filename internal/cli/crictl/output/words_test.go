package output

import (
	"testing"
	"time"
)

// TestDistance: durations use the same words as docker and crictl.
func TestDistance(t *testing.T) {
	const day = 24 * time.Hour
	for d, want := range map[time.Duration]string{
		-time.Second: "Less than a second", 999 * time.Millisecond: "Less than a second", time.Second: "1 second",
		59 * time.Second: "59 seconds", time.Minute: "About a minute", 59 * time.Minute: "59 minutes",
		time.Hour: "About an hour", 89 * time.Minute: "About an hour", 91 * time.Minute: "2 hours", 47 * time.Hour: "47 hours",
		2 * day: "2 days", 13 * day: "13 days", 14 * day: "2 weeks", 59 * day: "8 weeks", 60 * day: "2 months",
		729 * day: "24 months", 730 * day: "2 years",
	} {
		if got := distance(d); got != want {
			t.Errorf("%v is %q, want %q", d, got, want)
		}
	}
}

// TestSize: sizes use decimal units, with as many digits as the column has.
func TestSize(t *testing.T) {
	for _, c := range []struct {
		bytes  uint64
		digits int
		want   string
	}{
		{0, 4, "0B"},
		{999, 3, "999B"},
		{1000, 3, "1kB"},
		{742_000, 3, "742kB"},
		{8_230_912, 3, "8.23MB"},
		{4_637_000, 4, "4.637MB"},
		{20_480, 4, "20.48kB"},
		{5_000_000_000_000_000_000, 3, "5e+03PB"},
	} {
		if got := Size(c.bytes, c.digits); got != c.want {
			t.Errorf("%d bytes are %q, want %q", c.bytes, got, c.want)
		}
	}
}
