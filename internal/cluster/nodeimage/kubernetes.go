package nodeimage

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/berthrun/berth/internal/errs"
)

// programs checks the directory of Kubernetes, and reports all faults at once, before anything is
// created.
func (b *builder) programs(ctx context.Context) error {
	if err := checkPrograms(b.Kubernetes, b.expected()); err != nil {
		return err
	}
	var err error
	if b.version, err = b.output(ctx, "kubeadm", "version", "-o", "short"); err != nil {
		return err
	}
	kubelet, err := b.output(ctx, "kubelet", "--version")
	if err != nil {
		return err
	}
	if kubelet = strings.TrimPrefix(kubelet, "Kubernetes "); kubelet != b.version {
		return fmt.Errorf("%s has kubeadm %s and kubelet %s; want one version: %w", b.Kubernetes, b.version, kubelet, errs.Invalid)
	}
	// With a version kubeadm needs no internet.
	listed, err := b.output(ctx, "kubeadm", "config", "images", "list", "--kubernetes-version", b.version)
	if err != nil {
		return err
	}
	b.images, err = imagesOf(strings.Fields(listed))
	return err
}

// checkPrograms reports the programs that a directory lacks, and those that cannot run alone.
func checkPrograms(dir string, names []string) error {
	var missing []string
	for _, name := range names {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || !info.Mode().IsRegular() {
			missing = append(missing, name)
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("%s has no %s; want kubeadm, kubelet, kubectl, kube-apiserver, kube-controller-manager, kube-scheduler and kube-proxy in one directory, and etcd and coredns there or by --etcd and --coredns: %w",
			dir, strings.Join(missing, ", "), errs.NotFound)
	}
	for _, c := range components() {
		if !slices.Contains(names, c.name) {
			continue
		}
		if err := checkStatic(filepath.Join(dir, c.name)); err != nil {
			return err
		}
	}
	return nil
}

// output is the output of a program of the directory.
func (b *builder) output(ctx context.Context, name string, args ...string) (string, error) {
	var out bytes.Buffer
	if err := run(ctx, &out, filepath.Join(b.Kubernetes, name), args...); err != nil {
		return "", err
	}
	return strings.TrimSpace(out.String()), nil
}
