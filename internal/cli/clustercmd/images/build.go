// Package images has the commands of `berth cluster` for images: load, registry and build-image.
package images

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/berthrun/berth/internal/cli/clustercmd/session"
	"github.com/berthrun/berth/internal/cli/interrupt"
	"github.com/berthrun/berth/internal/cli/progress"
	"github.com/berthrun/berth/internal/cluster/config"
	"github.com/berthrun/berth/internal/cluster/nodeimage"
	"github.com/berthrun/berth/internal/cluster/nodeimage/release"
	"github.com/berthrun/berth/internal/cluster/provider"
	"github.com/berthrun/berth/internal/cluster/storage"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/version"
)

// NewBuild returns `build-image`.
func NewBuild() *cobra.Command {
	cmd, _ := Build()
	return cmd
}

// build has the flags of `build-image`.
type build struct {
	options  nodeimage.Options
	provider session.ProviderFlags
	// output is the file of the image; "" loads the image into the provider.
	output string
	// supervisor is the path of berth-supervisor; "" is the one beside this program.
	supervisor string
	// work is the parent of this build's directory; "" is the default.
	work string
	// packages: the command prints the packages of the image, and builds nothing.
	packages bool
}

// Build returns the command that builds a node image, and its options.
func Build() (*cobra.Command, *nodeimage.Options) {
	b := &build{options: nodeimage.Options{Version: version.Version, Empty: []string{storage.Image}, Sites: release.Projects()}}
	cmd := &cobra.Command{
		Use:   "build-image",
		Short: "Build a node image from Debian packages and Kubernetes binaries",
		Long: "build-image puts Debian with systemd, Kubernetes and this berth into one image, and loads the image into the\n" +
			"container engine. It needs root, debootstrap and tar. It verifies each download by the checksum file beside it,\n" +
			"or by the digest at the end of its URL: https://.../kubernetes-server-linux-amd64.tar.gz#sha256:...",
		Example: "  berth cluster build-image --kubernetes v1.36.3\n" +
			"  berth cluster build-image --kubernetes ./kubernetes/server/bin --etcd release --coredns release\n" +
			"  berth cluster build-image --kubernetes ./bin --output node.tar",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return b.run(cmd) },
	}
	b.addFlags(cmd)
	return cmd, &b.options
}

func (b *build) addFlags(cmd *cobra.Command) {
	b.provider.AddFlags(cmd)
	flags := cmd.Flags()
	flags.StringVar(&b.options.Kubernetes, "kubernetes", "", "release (v1.36.3, v1.36, stable), archive, URL of an archive, or directory, with kubeadm, kubelet, kubectl, kube-apiserver, kube-controller-manager, kube-scheduler and kube-proxy")
	flags.StringVar(&b.options.Etcd, "etcd", "", "binary, archive or URL; \"release\": the project's release that this Kubernetes needs; empty: the one beside Kubernetes, or that release")
	flags.StringVar(&b.options.CoreDNS, "coredns", "", "the same as --etcd, for CoreDNS")
	flags.StringVar(&b.options.Sites.Kubernetes, "releases", b.options.Sites.Kubernetes, "URL of the releases of Kubernetes, or of a mirror")
	flags.StringVar(&b.options.Image, "image", config.DefaultImage, "name of the image")
	flags.StringVar(&b.options.Suite, "suite", "bookworm", "release of Debian")
	flags.StringVar(&b.options.Mirror, "mirror", "", "mirror of Debian; empty: debootstrap's own")
	flags.StringVar(&b.options.Rootfs, "rootfs", "", "Debian root file system to copy, instead of running debootstrap")
	flags.BoolVar(&b.packages, "packages", false, "print the packages that --rootfs must have, in the form of debootstrap's --include, and build nothing")
	flags.StringVarP(&b.output, "output", "o", "", "write the image to this file, in the form of docker save, instead of loading it")
	flags.StringVar(&b.supervisor, "supervisor", "", "path of berth-supervisor; empty: the one beside this program")
	flags.StringVar(&b.options.Crictl, "crictl", "", "path of crictl for the nodes; empty: a link to berth, which has crictl's usual verbs")
	flags.StringVar(&b.work, "work", "", "working directory with 4 GB of free space; empty: the default for temporary files")
}

// run builds the image, and writes it to a file or loads it into the provider.
func (b *build) run(cmd *cobra.Command) (err error) {
	if b.packages {
		_, err := fmt.Fprintln(cmd.OutOrStdout(), strings.Join(nodeimage.Packages(), ","))
		return err
	}
	if b.options.Kubernetes == "" {
		return fmt.Errorf("--kubernetes is missing: name a release, such as v1.36.3 or stable, a URL, an archive, or a directory with kubeadm, kubelet and the others: %w", errs.Invalid)
	}
	if os.Geteuid() != 0 {
		return fmt.Errorf("cannot make a root file system of Debian: it has files of several users; run the command as root: %w", errs.Unsupported)
	}
	if b.options.Berth, b.options.Supervisor, err = ownPrograms(b.supervisor); err != nil {
		return err
	}
	if b.options.Work, err = os.MkdirTemp(b.work, "berth-node-image-"); err != nil {
		return fmt.Errorf("cannot make a directory to work in: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(b.options.Work)) }()
	steps := progress.NewSteps(cmd.ErrOrStderr())
	b.options.Step = steps.Begin
	var images provider.Provider
	if b.output == "" {
		if images, err = b.provider.Open(cmd); err != nil {
			return err
		}
	}
	return interrupt.Run(cmd.Context(), steps.Say, func(ctx context.Context) error {
		if b.output != "" {
			return nodeimage.Build(ctx, b.options, b.output)
		}
		archive := filepath.Join(b.options.Work, "image.tar")
		if err := nodeimage.Build(ctx, b.options, archive); err != nil {
			return err
		}
		end := steps.Begin("Loading the image into " + images.Name())
		err := readInto(archive, func(r io.Reader) error { return images.Load(ctx, r) })
		end(err)
		return err
	})
}

// ownPrograms are this program and its supervisor.
func ownPrograms(supervisor string) (berth, beside string, err error) {
	if berth, err = os.Executable(); err != nil {
		return "", "", fmt.Errorf("cannot find this program: %w", err)
	}
	if supervisor == "" {
		supervisor = filepath.Join(filepath.Dir(berth), "berth-supervisor")
	}
	if _, err := os.Stat(supervisor); err != nil {
		return "", "", fmt.Errorf("cannot find berth-supervisor, which goes into the image; name it by --supervisor: %w", err)
	}
	return berth, supervisor, nil
}

// readInto gives a file to a reader.
func readInto(path string, use func(io.Reader) error) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	return use(file)
}
