package nodeimage

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"

	"github.com/distribution/reference"

	"github.com/berthrun/berth/internal/cluster/nodeimage/release"
	"github.com/berthrun/berth/internal/errs"
)

// Released fetches etcd or CoreDNS from the releases of their projects, in the version that this
// Kubernetes needs.
const Released = "release"

// check refuses sources that cannot work.
func (b *builder) check() error {
	for _, name := range append([]string{b.Image}, b.Also...) {
		full, err := fullName(name)
		if err != nil {
			return err
		}
		b.names = append(b.names, full)
	}
	if b.Crictl != "" && !isFile(b.Crictl) {
		return fmt.Errorf("--crictl %s: there is no such program: %w", b.Crictl, errs.NotFound)
	}
	if info, err := os.Stat(b.Kubernetes); err == nil && info.IsDir() {
		return nil
	}
	if b.fetched = release.IsURL(b.Kubernetes) || release.IsRelease(b.Kubernetes) || isFile(b.Kubernetes); !b.fetched {
		return fmt.Errorf("--kubernetes %s: there is no such directory or archive, and it is neither a URL nor a release such as v1.36.3 or stable: %w", b.Kubernetes, errs.Invalid)
	}
	// A release of Kubernetes contains neither.
	for _, place := range []*string{&b.Etcd, &b.CoreDNS} {
		if *place == "" {
			*place = Released
		}
	}
	return nil
}

// fullName is the name of an image with its registry and tag: engines differ in what they add
// to a short one when they load it.
func fullName(name string) (string, error) {
	named, err := reference.ParseNormalizedNamed(name)
	if err != nil || isDigested(named) {
		return "", fmt.Errorf("--image: %q: want a name such as registry.example/node:1: %w", name, errs.Invalid)
	}
	return reference.TagNameOnly(named).String(), nil
}

func isDigested(named reference.Named) bool {
	_, digested := named.(reference.Digested)
	return digested
}

func isFile(place string) bool {
	info, err := os.Stat(place)
	return err == nil && info.Mode().IsRegular()
}

// separate are the components that do not come with Kubernetes, and their sources.
func (b *builder) separate() map[string]string {
	all := map[string]string{"etcd": b.Etcd, "coredns": b.CoreDNS}
	for name, place := range all {
		if place == "" {
			delete(all, name)
		}
	}
	return all
}

// expected are the programs in the directory of Kubernetes.
func (b *builder) expected() []string {
	names := programs()
	for _, c := range components() {
		names = append(names, c.name)
	}
	return slices.DeleteFunc(names, func(name string) bool { return b.separate()[name] != "" })
}

func (b *builder) fetcher() *release.Fetcher {
	return &release.Fetcher{Sites: b.Sites, Arch: runtime.GOARCH, Work: b.Work}
}

// fetch copies the programs of Kubernetes into a work directory.
func (b *builder) fetch(ctx context.Context) (err error) {
	place, f := b.Kubernetes, b.fetcher()
	if !release.IsURL(place) && !isFile(place) {
		if place, err = f.Server(ctx, place); err != nil {
			return unreached(ctx, err)
		}
	}
	if b.Kubernetes, err = b.own(); err != nil {
		return err
	}
	err = f.Programs(ctx, place, b.Kubernetes, b.expected()...)
	if release.IsURL(place) {
		return unreached(ctx, err)
	}
	return err
}

// unreached adds to the error of a failed download how to build without one.
func unreached(ctx context.Context, err error) error {
	if err == nil || ctx.Err() != nil || errors.Is(err, errs.Invalid) {
		return err // a wrong checksum is not a network error
	}
	return fmt.Errorf("%w\n  without internet: --kubernetes DIR takes programs that are on this host (kubeadm, kubelet, kubectl, kube-apiserver, kube-controller-manager, "+
		"kube-scheduler, kube-proxy, etcd, coredns), --etcd and --coredns take files, and --releases URL a mirror of dl.k8s.io; docs/cluster.md has the way", err)
}

// own is a work directory for programs.
func (b *builder) own() (string, error) {
	dir := filepath.Join(b.Work, "kubernetes")
	return dir, os.MkdirAll(dir, 0o755)
}

// fetchOthers fetches etcd and CoreDNS into the directory of Kubernetes.
func (b *builder) fetchOthers(ctx context.Context) error {
	from := b.Kubernetes
	dir, err := b.own()
	if err != nil {
		return err
	}
	if b.Kubernetes = dir; from != dir {
		// The user's directory stays unchanged.
		if from, err = filepath.Abs(from); err != nil {
			return err
		}
		for _, name := range b.expected() {
			if err := os.Symlink(filepath.Join(from, name), filepath.Join(dir, name)); err != nil {
				return err
			}
		}
	}
	f := b.fetcher()
	released := map[string]func(tag string) (string, error){"etcd": f.Etcd, "coredns": f.CoreDNS}
	for name, place := range b.separate() {
		if place == Released {
			image, ok := parseTagged(b.images[name])
			if !ok {
				return fmt.Errorf("--%s: the image %q has no tag: %w", name, b.images[name], errs.Invalid)
			}
			if place, err = released[name](image.Tag()); err != nil {
				return fmt.Errorf("--%s: %w", name, err)
			}
		}
		if err := f.Programs(ctx, place, dir, name); err != nil {
			if release.IsURL(place) {
				err = unreached(ctx, err)
			}
			return fmt.Errorf("--%s: %w", name, err)
		}
	}
	return checkPrograms(dir, []string{"etcd", "coredns"})
}
