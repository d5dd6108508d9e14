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

// Build returns the command that builds a node image, and its options.
func Build() (*cobra.Command, *nodeimage.Options) {
	o := &nodeimage.Options{Version: version.Version, Empty: []string{storage.Image}, Sites: release.Projects()}
	var engine session.ProviderFlags
	var output, supervisor, work string
	var packages bool
	cmd := &cobra.Command{
		Use:   "build-image",
		Short: "Make the image of nodes out of Debian packages and programs of Kubernetes",
		Long: "build-image puts Debian with systemd, Kubernetes and this berth into one image, and loads it into the container\n" +
			"engine. It runs as root, and needs debootstrap and tar. What is fetched has to have the sum beside it, or the one\n" +
			"that is said behind its URL: https://.../kubernetes-server-linux-amd64.tar.gz#sha256:...",
		Example: "  berth cluster build-image --kubernetes v1.36.3\n" +
			"  berth cluster build-image --kubernetes ./kubernetes/server/bin --etcd release --coredns release\n" +
			"  berth cluster build-image --kubernetes ./bin --output node.tar",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if packages {
				_, err := fmt.Fprintln(cmd.OutOrStdout(), strings.Join(nodeimage.Packages(), ","))
				return err
			}
			if o.Kubernetes == "" {
				return fmt.Errorf("--kubernetes is missing: name a release, such as v1.36.3 or stable, a URL, an archive, or a directory with kubeadm, kubelet and the others: %w", errs.Invalid)
			}
			if os.Geteuid() != 0 {
				return fmt.Errorf("a root file system of Debian has files of several users, which only root can make: run it as root: %w", errs.Unsupported)
			}
			if o.Berth, o.Supervisor, err = ownPrograms(supervisor); err != nil {
				return err
			}
			if o.Work, err = os.MkdirTemp(work, "berth-node-image-"); err != nil {
				return fmt.Errorf("cannot make a directory to work in: %w", err)
			}
			defer func() { err = errors.Join(err, os.RemoveAll(o.Work)) }()
			steps := progress.NewSteps(cmd.ErrOrStderr())
			o.Step = steps.Begin
			var images provider.Provider
			if output == "" {
				if images, err = engine.Open(cmd); err != nil {
					return err
				}
			}
			return session.Interruptible(cmd.Context(), steps.Say, func(ctx context.Context) error {
				if output != "" {
					return nodeimage.Build(ctx, *o, output)
				}
				archive := filepath.Join(o.Work, "image.tar")
				if err := nodeimage.Build(ctx, *o, archive); err != nil {
					return err
				}
				end := steps.Begin("Loading the image into " + images.Name())
				err := readInto(archive, func(r io.Reader) error { return images.Load(ctx, r) })
				end(err)
				return err
			})
		},
	}
	flags := cmd.Flags()
	engine.AddFlags(cmd)
	flags.StringVar(&o.Kubernetes, "kubernetes", "", "release (v1.36.3, v1.36, stable), archive, URL of one, or directory, of kubeadm, kubelet, kubectl, kube-apiserver, kube-controller-manager, kube-scheduler and kube-proxy")
	flags.StringVar(&o.Etcd, "etcd", "", "program, archive or URL; \"release\": of the project, as this Kubernetes wants it; empty: beside Kubernetes, or its release")
	flags.StringVar(&o.CoreDNS, "coredns", "", "the same for CoreDNS")
	flags.StringVar(&o.Sites.Kubernetes, "releases", o.Sites.Kubernetes, "where releases of Kubernetes are, or a mirror of that")
	flags.StringVar(&o.Image, "image", config.DefaultImage, "name of the image")
	flags.StringVar(&o.Suite, "suite", "bookworm", "release of Debian")
	flags.StringVar(&o.Mirror, "mirror", "", "mirror of Debian; empty: debootstrap's own")
	flags.StringVar(&o.Rootfs, "rootfs", "", "root file system of Debian that is copied, in place of one that debootstrap makes")
	flags.BoolVar(&packages, "packages", false, "print the packages that a root file system for --rootfs has to have, as debootstrap's --include takes them, and make nothing")
	flags.StringVarP(&output, "output", "o", "", "write the image to this file, as docker save does, and load it nowhere")
	flags.StringVar(&supervisor, "supervisor", "", "berth-supervisor; empty: the one beside this program")
	flags.StringVar(&o.Crictl, "crictl", "", "program that is crictl in nodes; empty: a link to berth, which has the verbs that are typed on nodes")
	flags.StringVar(&work, "work", "", "directory on a disk with 4 GB free to work in; empty: the usual one for temporary files")
	return cmd, o
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
