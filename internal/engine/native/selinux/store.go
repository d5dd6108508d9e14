package selinux

import (
	"context"
	"fmt"
	"os"

	"github.com/opencontainers/selinux/go-selinux"
)

// LabelStore gives dir, a store of layers that is made if it is absent, the label of
// what every container may read, and all below it. The label of a container's mount
// is not enough: a program or a library that is mapped is the layer's own file, and
// the kernel asks for the label of that. What is made in dir later gets its type from
// the directory that it is made in, so a store whose top has the label is left alone.
// It does nothing without SELinux, and where the policy has no such label; pods report that.
// progress, if not nil, is called now and then with the number of files so far.
func LabelStore(ctx context.Context, dir string, progress func(files int64)) error {
	if !selinux.GetEnabled() {
		return nil
	}
	label, written := readOnlyFiles()
	if label == "" {
		return nil
	}
	return labelStore(ctx, NewRelabeller(Attribute).forStore(typeOf(written)), dir, label, progress)
}

// ReadOnlyFiles is the label of files that every container may read, map and execute, ""
// without SELinux and where the policy has no such label.
func ReadOnlyFiles() string {
	if !selinux.GetEnabled() {
		return ""
	}
	label, _ := readOnlyFiles()
	return label
}

// readOnlyFiles also returns a label of files that a container may write.
func readOnlyFiles() (label, written string) {
	// The library knows the label of layers only after it has given out one of
	// containers.
	process, written := selinux.ContainerLabels() //nolint:staticcheck // nothing else makes ROFileLabel known
	selinux.ReleaseLabel(process)
	label = selinux.ROFileLabel() //nolint:staticcheck // the policy's file of labels is not read twice
	if label == "" || selinux.SecurityCheckContext(label) != nil {
		return "", written
	}
	return label, written
}

func labelStore(ctx context.Context, r *Relabeller, dir, label string, progress func(files int64)) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("cannot make the directory of the image store: %w", err)
	}
	if err := r.Relabel(ctx, dir, label, progress); err != nil {
		return fmt.Errorf("cannot label the image store for SELinux (runtime.selinux = \"off\" leaves it, and containers, as they are): %w", err)
	}
	return nil
}
