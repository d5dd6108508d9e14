package network

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/berthrun/berth/internal/errs"
)

func TestRequestedAddresses(t *testing.T) {
	for text, want := range map[string][]netip.Addr{
		"10.0.0.7":         {netip.MustParseAddr("10.0.0.7")},
		"fd00::7,10.0.0.7": {netip.MustParseAddr("fd00::7"), netip.MustParseAddr("10.0.0.7")},
	} {
		got, err := RequestedAddresses(map[string]string{AnnotationAddresses: text})
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
	if got, err := RequestedAddresses(map[string]string{"x": "10.0.0.7"}); err != nil || got != nil {
		t.Errorf("none: %v, %v", got, err)
	}
	for _, text := range []string{"", "10.0.0.7,", "10.0.0.7/24", "10.0.0.7,10.0.0.8", "127.0.0.1", "fe80::1%eth0", "fe80::1", "::ffff:10.0.0.7", "0.0.0.0", "224.0.0.1", " 10.0.0.7"} {
		if _, err := RequestedAddresses(map[string]string{AnnotationAddresses: text}); !errors.Is(err, errs.Invalid) || !strings.Contains(err.Error(), AnnotationAddresses) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// FuzzRequestedAddresses: accepted input has at most one address of each family. A refusal names
// the annotation.
func FuzzRequestedAddresses(f *testing.F) {
	for _, text := range []string{"", "10.0.0.7", "fd00::7,10.0.0.7", "10.0.0.7,10.0.0.8", "fe80::1%eth0", "::ffff:10.0.0.7", ","} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		all, err := RequestedAddresses(map[string]string{AnnotationAddresses: text})
		if err != nil {
			if !errors.Is(err, errs.Invalid) || all != nil {
				t.Errorf("%q: %v, %v", text, all, err)
			}
			return
		}
		if len(all) == 0 || len(all) > 2 || len(all) == 2 && all[0].Is4() == all[1].Is4() {
			t.Errorf("%q: %v", text, all)
		}
		for _, a := range all {
			if !a.IsValid() || a.Zone() != "" || a.IsLoopback() || a.IsUnspecified() || a.IsMulticast() {
				t.Errorf("%q: %v", text, a)
			}
		}
	})
}
