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

// programs looks at the directory of Kubernetes: all faults of it at once, before
// anything is made.
func (b *builder) programs(ctx context.Context) error {
	if err := checkPrograms(b.Kubernetes, b.expected()); err != nil {
		return err
	}
	var err error
	if b.version, err = b.ask(ctx, "kubeadm", "version", "-o", "short"); err != nil {
		return err
	}
	kubelet, err := b.ask(ctx, "kubelet", "--version")
	if err != nil {
		return err
	}
	if kubelet = strings.TrimPrefix(kubelet, "Kubernetes "); kubelet != b.version {
		return fmt.Errorf("%s has kubeadm %s and kubelet %s; want one version: %w", b.Kubernetes, b.version, kubelet, errs.Invalid)
	}
	// With a version it asks nobody on the internet.
	listed, err := b.ask(ctx, "kubeadm", "config", "images", "list", "--kubernetes-version", b.version)
	if err != nil {
		return err
	}
	b.images, err = imagesOf(strings.Fields(listed))
	return err
}

// checkPrograms tells which programs a directory lacks, and which cannot run alone.
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

// ask is what a program of the directory says.
func (b *builder) ask(ctx context.Context, name string, args ...string) (string, error) {
	var out bytes.Buffer
	if err := run(ctx, &out, filepath.Join(b.Kubernetes, name), args...); err != nil {
		return "", err
	}
	return strings.TrimSpace(out.String()), nil
}
