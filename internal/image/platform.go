package image

import (
	"context"
	"fmt"
	"regexp"
	"strings"

	"github.com/containerd/platforms"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/berthrun/berth/internal/errs"
)

// AnnotationPlatform is the annotation by which lists of images in CRI say that one is for another platform than the
// node's, and for which.
const AnnotationPlatform = "run.berth.platform"

var platformPattern = regexp.MustCompile(`^[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*){1,2}$`)

// ParsePlatform returns the short form of a platform, os/arch[/variant], and "" for the node's own: "linux/x86_64" is
// "linux/amd64", and "" on a node with this platform. Kind Invalid.
func ParsePlatform(text string) (string, error) {
	spec, err := platforms.Parse(text)
	if err != nil || !platformPattern.MatchString(text) {
		return "", fmt.Errorf("platform %q: want os/arch or os/arch/variant, such as linux/arm64 or wasi/wasm: %w", text, errs.Invalid)
	}
	if short := platforms.Format(platforms.Normalize(spec)); short != NodePlatform() {
		return short, nil
	}
	return "", nil
}

// NodePlatform is the short form of the node's platform.
func NodePlatform() string { return platforms.Format(platforms.Normalize(platforms.DefaultSpec())) }

// MatcherOf chooses images for a platform of ParsePlatform. For the node's it takes what its processor runs. For another
// one it takes that architecture alone, with the same variant or a lower one.
func MatcherOf(platform string) platforms.MatchComparer {
	if platform == "" {
		return platforms.Default()
	}
	spec, err := platforms.Parse(platform)
	if err != nil {
		return platforms.Any() // that of no image
	}
	spec = platforms.Normalize(spec)
	return sameArchitecture{platforms.Only(spec), spec.Architecture}
}

type sameArchitecture struct {
	platforms.MatchComparer
	architecture string
}

// Match implements platforms.Matcher.
func (m sameArchitecture) Match(has imagespec.Platform) bool {
	return platforms.Normalize(has).Architecture == m.architecture && m.MatchComparer.Match(has)
}

// Platform is the short form of the image's platform, "" for an artifact.
func (i *Image) Platform() string {
	if i.Artifact != nil || i.OS == "" {
		return ""
	}
	return platforms.Format(platforms.Normalize(i.spec()))
}

func (i *Image) spec() imagespec.Platform {
	return imagespec.Platform{OS: i.OS, Architecture: i.Architecture, Variant: i.Variant}
}

// IsFor reports whether an image may be used for a platform of ParsePlatform. An artifact is for all.
func (i *Image) IsFor(platform string) bool {
	return i.Artifact != nil || i.OS == "" || MatcherOf(platform).Match(i.spec())
}

// PlatformStore is a Store that can have one name for several images, one for each platform. Other methods find by a name
// the image for the node's platform, and by an id any image. A platform is one of ParsePlatform. It is an optional
// interface.
type PlatformStore interface {
	// GetFor is Store.Get of an image for a platform. The error is an OtherPlatformError if the store has what ref names for
	// other platforms only.
	GetFor(ctx context.Context, platform, ref string) (*Image, error)
	// RemoveFor is Store.Remove of an image for a platform.
	RemoveFor(ctx context.Context, platform, ref string) error
}

// OtherPlatformError is the error of an image that the store has for other platforms only. Its kind is NotFound.
type OtherPlatformError struct {
	Ref string
	// Has are the platforms of the images that the store has, Wants the one that was asked for.
	Has   []string
	Wants string
}

func (e *OtherPlatformError) Error() string {
	wants := e.Wants
	if wants == "" {
		wants = NodePlatform()
	}
	return fmt.Sprintf("image %q is on this node for %s, not for %s", e.Ref, strings.Join(e.Has, ", "), wants)
}

// Unwrap returns the kind.
func (e *OtherPlatformError) Unwrap() error { return errs.NotFound }
