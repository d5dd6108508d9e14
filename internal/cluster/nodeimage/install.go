package nodeimage

import (
	"context"
	"embed"
	"errors"
	"io"
	"os"
	"path/filepath"
)

//go:embed files
var embedded embed.FS

// drops are embedded files and their paths in the image.
func drops() map[string]string {
	return map[string]string{
		"kubelet.conf":           "etc/systemd/system/kubelet.service.d/20-node.conf",
		"berth.conf":             "etc/systemd/system/berth.service.d/20-node.conf",
		"berth-services.service": "etc/systemd/system/berth-services.service",
		"journald.conf":          "etc/systemd/journald.conf.d/20-node.conf",
		"system.conf":            "etc/systemd/system.conf.d/20-node.conf",
	}
}

// install puts programs, berth and settings into the root.
func (b *builder) install(ctx context.Context) error {
	if err := b.trim(); err != nil {
		return err
	}
	if err := b.nodeFiles(ctx); err != nil {
		return err
	}
	var all []error
	for _, name := range programs() {
		all = append(all, b.copy(filepath.Join(b.Kubernetes, name), "usr/bin/"+name))
	}
	all = append(all, b.copy(b.Berth, EntryProgram), b.copy(b.Supervisor, "usr/local/bin/berth-supervisor"))
	for name, target := range drops() {
		text, err := embedded.ReadFile("files/" + name)
		all = append(all, err, b.write(target, text))
	}
	all = append(all,
		b.versionFiles(),
		b.tools(),
		os.Symlink("/etc/systemd/system/berth-services.service", filepath.Join(b.root, "etc/systemd/system/multi-user.target.wants/berth-services.service")),
		os.MkdirAll(filepath.Join(b.root, "etc/kubernetes/manifests"), 0o755),
		os.MkdirAll(filepath.Join(b.root, "etc/berth/cluster"), 0o755),
	)
	return errors.Join(all...)
}

// nodeFiles are those that `berth node` would write on a machine: units, settings of clients. The
// program writes them, so that nodes are set up in one way only.
func (b *builder) nodeFiles(ctx context.Context) error {
	description, err := embedded.ReadFile("files/node.yaml")
	if err != nil {
		return err
	}
	file, tree := filepath.Join(b.Work, "node.yaml"), filepath.Join(b.Work, "tree")
	if err := os.WriteFile(file, description, 0o644); err != nil {
		return err
	}
	if err := run(ctx, nil, b.Berth, "node", "render", "--target=dir", "--output="+tree, "--distribution=debian:12", "--node-file=", file); err != nil {
		return err
	}
	// The cluster's own is written when there is one.
	if err := os.Remove(filepath.Join(tree, "root/etc/berth/berth.toml")); err != nil {
		return err
	}
	return run(ctx, nil, "cp", "--archive", "--no-target-directory", filepath.Join(tree, "root"), b.root)
}

func (b *builder) copy(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	target := filepath.Join(b.root, to)
	if err := create(target, func(w io.Writer) error { _, err := io.Copy(w, in); return err }); err != nil {
		return err
	}
	return os.Chmod(target, 0o755)
}

func (b *builder) write(to string, text []byte) error {
	target := filepath.Join(b.root, to)
	if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
		return err
	}
	return os.WriteFile(target, text, 0o644)
}
