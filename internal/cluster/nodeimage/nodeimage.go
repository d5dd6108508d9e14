// Package nodeimage builds the node image: Debian with systemd, the programs of Kubernetes, the
// images of its components in a directory that berth uses directly, and berth as `berth node`
// installs it. It knows no container engine: its result is an archive that all engines load.
//
// The order of steps, as Build goes through them:
//
//	fetch       the programs of Kubernetes, etcd and CoreDNS, where they are not in a directory (gather.go)
//	programs    which there are, of which version; the images that kubeadm wants (kubernetes.go)
//	root        Debian by debootstrap, or a directory that is given (debian.go)
//	files       programs, berth and its units, what is otherwise in a container (install.go)
//	components  an image of each component of Kubernetes, unpacked (components.go, closure.go)
//	archive     all of that as one layer (archive.go)
package nodeimage

import (
	"context"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"

	"github.com/berthrun/berth/internal/cluster/nodeimage/release"
)

// Paths in a node.
const (
	// VersionFile has the version of Kubernetes, such as v1.36.3.
	VersionFile = "/usr/share/berth/kubernetes-version"
	// PreloadedDir has the images of all components, as `berth image preload` writes them. A daemon
	// uses them by default.
	PreloadedDir = "/usr/share/berth/preloaded"
	// KindVersionFile has that version, too, at the path where scripts for kind's nodes look for
	// it.
	KindVersionFile = "/kind/version"
	// EntryProgram is berth.
	EntryProgram = "/usr/local/bin/berth"
)

// Labels of the image.
const (
	LabelKubernetes = "run.berth.node.kubernetes"
	LabelBerth      = "run.berth.node.berth"
)

// Options are the inputs of an image.
type Options struct {
	// Image is its name, Also are others of it.
	Image string
	Also  []string
	// Kubernetes is a directory with the programs of Kubernetes, an archive of them, its URL,
	// or a release: v1.36.3, v1.36, stable.
	Kubernetes string
	// Etcd and CoreDNS are those programs, archives with them, their URLs, or Released. Empty: they
	// are in the directory of Kubernetes, or Released if Kubernetes is not a directory.
	Etcd, CoreDNS string
	// Sites are the URLs of release sites.
	Sites release.Sites
	// Rootfs is a Debian root filesystem to copy. Empty: debootstrap creates one with Packages, of
	// the release Suite from Mirror ("" is debootstrap's own).
	Rootfs, Suite, Mirror string
	// Berth and Supervisor are the programs that go into the image, Version is the version that
	// they report.
	Berth, Supervisor, Version string
	// Crictl is the program for crictl in the image; empty: a link to berth.
	Crictl string
	// Empty are names of empty images, for pods that mount the node's own berth as their program.
	Empty []string
	// Work is a work directory, on a disk with 4 GB free.
	Work string
	// Step reports the begin of a step; Build calls the returned function at its end.
	Step func(text string) func(error)
}

// builder is one run of Build.
type builder struct {
	Options
	root    string
	version string
	names   []string // of the image, in full
	images  map[string]string
	// fetched: Kubernetes is not a directory.
	fetched bool
}

// Build builds the image and writes its archive.
func Build(ctx context.Context, o Options, to string) error {
	b := &builder{Options: o, root: filepath.Join(o.Work, "root")}
	if err := b.check(); err != nil {
		return err
	}
	for _, step := range []struct {
		text string
		do   func(context.Context) error
		when bool
	}{
		{"Fetching Kubernetes " + path.Base(b.Kubernetes), b.fetch, b.fetched},
		{"Looking at the programs of Kubernetes", b.programs, true},
		{"Fetching etcd and CoreDNS", b.fetchOthers, len(b.separate()) > 0},
		{"Making a Debian root file system", b.debian, true},
		{"Installing Kubernetes and berth", b.install, true},
		{"Making the components' images", b.components, true},
		{"Packing the image", func(ctx context.Context) error { return b.pack(ctx, to) }, true},
	} {
		if !step.when {
			continue
		}
		end := o.Step(step.text)
		err := ctx.Err()
		if err == nil {
			err = step.do(ctx)
		}
		end(err)
		if err != nil {
			return fmt.Errorf("cannot make the node image %s: %w", o.Image, err)
		}
	}
	return nil
}

// components writes the images of all components into the root.
func (b *builder) components(ctx context.Context) error {
	dir := filepath.Join(b.Work, "components")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	var archives []string
	for _, c := range components() {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		files, err := c.files(b.Kubernetes, b.root)
		if err != nil {
			return fmt.Errorf("image %s: %w", b.images[c.name], err)
		}
		archives = append(archives, filepath.Join(dir, c.name+".tar"))
		if err := b.archive(b.images[c.name], c.settings(), files, archives[len(archives)-1]); err != nil {
			return fmt.Errorf("image %s: %w", b.images[c.name], err)
		}
	}
	for i, image := range b.Empty {
		archives = append(archives, filepath.Join(dir, fmt.Sprintf("empty-%d.tar", i)))
		if err := b.archive(image, settings{}, nil, archives[len(archives)-1]); err != nil {
			return fmt.Errorf("image %s: %w", image, err)
		}
	}
	return run(ctx, nil, b.Berth, append([]string{"image", "preload", filepath.Join(b.root, PreloadedDir)}, archives...)...)
}

func (b *builder) archive(image string, s settings, files []entry, to string) error {
	layer := filepath.Join(b.Work, filepath.Base(to)+".layer")
	defer os.Remove(layer)
	if err := create(layer, func(w io.Writer) error { return writeLayer(w, files) }); err != nil {
		return err
	}
	return create(to, func(w io.Writer) error { return writeArchive(w, []string{image}, s, layer) })
}

// pack writes the root as an image.
func (b *builder) pack(ctx context.Context, to string) error {
	layer := filepath.Join(b.Work, "node.layer")
	defer os.Remove(layer)
	// tar keeps owners, links and capabilities of files.
	if err := run(ctx, nil, "tar", "--create", "--file="+layer, "--directory="+b.root, "--numeric-owner", "--sort=name",
		"--xattrs", "--xattrs-include=*", "--exclude=./dev/*", "--exclude=./proc/*", "--exclude=./sys/*", "--exclude=./run/*", "."); err != nil {
		return err
	}
	return create(to, func(w io.Writer) error {
		return writeArchive(w, b.names, b.settings(), layer)
	})
}

// settings are those of the node image. systemd halts on that signal.
func (b *builder) settings() settings {
	return settings{
		Env:        []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
		Entrypoint: []string{EntryProgram, "cluster", "in-node", "start"},
		StopSignal: "SIGRTMIN+3",
		Labels:     map[string]string{LabelKubernetes: b.version, LabelBerth: b.Version},
	}
}

// create writes a file.
func create(file string, write func(io.Writer) error) (err error) {
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	defer func() {
		if closed := f.Close(); err == nil {
			err = closed
		}
	}()
	return write(f)
}
