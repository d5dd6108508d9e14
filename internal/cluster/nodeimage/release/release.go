// Package release fetches programs from the releases of projects: archives at URLs, which it checks
// by their checksums, and the releases of Kubernetes, etcd and CoreDNS by version. It knows nothing
// of images.
package release

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"path"
	"regexp"
	"strings"

	"github.com/berthrun/berth/internal/errs"
)

// Sites are the URLs of release sites.
type Sites struct {
	// Kubernetes has `v1.36.3/kubernetes-server-linux-amd64.tar.gz` and `release/stable.txt`.
	Kubernetes string
	// Etcd and CoreDNS have a directory for each version.
	Etcd, CoreDNS string
}

// Projects are the sites of the projects.
func Projects() Sites {
	return Sites{
		Kubernetes: "https://dl.k8s.io",
		Etcd:       "https://github.com/etcd-io/etcd/releases/download",
		CoreDNS:    "https://github.com/coredns/coredns/releases/download",
	}
}

// version matches a release of Kubernetes, channel a name for the newest of a minor version, or of
// all.
const (
	version = `^v?[0-9]+\.[0-9]+\.[0-9]+(-[0-9A-Za-z.-]+)?$`
	channel = `^(stable|latest)(-[0-9]+\.[0-9]+)?$`
	minor   = `^v?[0-9]+\.[0-9]+$`
)

// IsURL reports whether a source is fetched over the network.
func IsURL(place string) bool {
	return strings.HasPrefix(place, "https://") || strings.HasPrefix(place, "http://")
}

// IsRelease reports whether a source is the name of a release: v1.36.3, v1.36, stable.
func IsRelease(place string) bool {
	for _, form := range []string{version, channel, minor} {
		if regexp.MustCompile(form).MatchString(place) {
			return true
		}
	}
	return false
}

// Server is the URL of the programs of a release of Kubernetes, given by any of its names.
func (f *Fetcher) Server(ctx context.Context, release string) (string, error) {
	if !regexp.MustCompile(version).MatchString(release) {
		name := release
		if regexp.MustCompile(minor).MatchString(release) {
			name = "stable-" + strings.TrimPrefix(release, "v")
		}
		text, err := f.text(ctx, f.Sites.Kubernetes+"/release/"+name+".txt")
		if err != nil {
			return "", fmt.Errorf("cannot find the release of Kubernetes %s: %w", release, err)
		}
		if release = strings.TrimSpace(text); !regexp.MustCompile(version).MatchString(release) {
			return "", fmt.Errorf("%s/release/%s.txt is not a version of Kubernetes: %.40q: %w", f.Sites.Kubernetes, name, release, errs.Invalid)
		}
	}
	return fmt.Sprintf("%s/v%s/kubernetes-server-linux-%s.tar.gz", f.Sites.Kubernetes, strings.TrimPrefix(release, "v"), f.Arch), nil
}

// etcdTag matches the tag of an image of etcd: its version, and the number of the image's build.
var etcdTag = regexp.MustCompile(`^v?([0-9]+\.[0-9]+\.[0-9]+(?:-(?:alpha|beta|rc)\.[0-9]+)?)(?:-[0-9]+)?$`)

// Etcd is the URL of the release of etcd for an image's tag, such as 3.6.8-0.
func (f *Fetcher) Etcd(tag string) (string, error) {
	found := etcdTag.FindStringSubmatch(tag)
	if found == nil {
		return "", fmt.Errorf("%q is not a version of etcd: %w", tag, errs.Unsupported)
	}
	return fmt.Sprintf("%s/v%s/etcd-v%[2]s-linux-%s.tar.gz", f.Sites.Etcd, found[1], f.Arch), nil
}

// CoreDNS is the URL of the release of CoreDNS for an image's tag, such as v1.14.2.
func (f *Fetcher) CoreDNS(tag string) (string, error) {
	if !regexp.MustCompile(version).MatchString(tag) {
		return "", fmt.Errorf("%q is not a version of CoreDNS: %w", tag, errs.Unsupported)
	}
	number := strings.TrimPrefix(tag, "v")
	return fmt.Sprintf("%s/v%s/coredns_%[2]s_linux_%s.tgz", f.Sites.CoreDNS, number, f.Arch), nil
}

// Programs extracts programs from a source into a directory. The source is an archive (tar, with or
// without gzip) or a single program, as a file or a URL.
func (f *Fetcher) Programs(ctx context.Context, place, dir string, names ...string) error {
	file, name := place, path.Base(place)
	if IsURL(place) {
		at, err := url.Parse(place)
		if err != nil {
			return fmt.Errorf("%s: %w: %w", place, errs.Invalid, err)
		}
		name = path.Base(at.Path)
		if file, err = f.download(ctx, at); err != nil {
			return err
		}
		defer os.Remove(file)
	}
	for _, end := range []string{".tar.gz", ".tgz", ".tar"} {
		if strings.HasSuffix(name, end) {
			return unpack(ctx, place, file, dir, names)
		}
	}
	if len(names) == 1 {
		return single(file, path.Join(dir, names[0]))
	}
	return fmt.Errorf("%s is not an archive; want one whose name ends in .tar.gz, .tgz or .tar: %w", place, errs.Invalid)
}
