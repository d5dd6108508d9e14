package image

import (
	"errors"
	"runtime"
	"testing"

	"github.com/containerd/platforms"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/berthrun/berth/internal/errs"
)

func TestParsePlatform(t *testing.T) {
	for text, want := range map[string]string{
		"wasi/wasm": "wasi/wasm", "linux/riscv64": "linux/riscv64", "linux/arm": "linux/arm/v7", "linux/ARMHF": "linux/arm/v7",
		"linux/arm/v6": "linux/arm/v6", "linux/" + runtime.GOARCH: "", NodePlatform(): "", "linux/amd64/v3": "linux/amd64/v3",
	} {
		if got, err := ParsePlatform(text); err != nil || got != want {
			t.Errorf("%q: %q, %v, want %q", text, got, err, want)
		}
	}
	for _, text := range []string{"", "linux", "wasm", "linux/", "/amd64", "linux/amd64/v1/x", "linux/am d64", "windows(10.0)/amd64", "a#b/c", "linux/..", "linux/\n"} {
		if got, err := ParsePlatform(text); !errors.Is(err, errs.Invalid) {
			t.Errorf("%q: %q, %v", text, got, err)
		}
	}
}

func TestImagesOfPlatforms(t *testing.T) {
	for _, test := range []struct {
		has, wants string
		fits       bool
	}{
		{"wasi/wasm", "wasi/wasm", true},
		{"wasi/wasm", "", false},
		{NodePlatform(), "", true},
		{NodePlatform(), "wasi/wasm", false},
		{"linux/arm64/v8", "linux/arm64", true},
		{"linux/arm/v7", "linux/arm64", false}, // what emulates one need not emulate the other
		{"linux/386", "linux/amd64/v3", false},
		{"linux/amd64", "linux/amd64/v3", true},
		{"linux/amd64/v3", "linux/amd64/v2", false},
		{"linux/arm/v6", "linux/arm/v7", true},
	} {
		spec := platforms.MustParse(test.has)
		img := &Image{OS: spec.OS, Architecture: spec.Architecture, Variant: spec.Variant}
		if got := img.IsFor(test.wants); got != test.fits {
			t.Errorf("an image for %s fits %q: %v", test.has, test.wants, got)
		}
	}
	if img := (&Image{Artifact: &Artifact{}}); !img.IsFor("wasi/wasm") || img.Platform() != "" {
		t.Error("an artifact is for a platform")
	}
	better := MatcherOf("linux/amd64/v3")
	if !better.Less(imagespec.Platform{OS: "linux", Architecture: "amd64", Variant: "v3"}, imagespec.Platform{OS: "linux", Architecture: "amd64"}) {
		t.Error("a lower variant is preferred")
	}
}
