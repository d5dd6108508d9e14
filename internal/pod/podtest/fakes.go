package podtest

import (
	"context"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"sync"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/image"
	"github.com/berthrun/berth/internal/network"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Network is a network in memory. The zero value is ready.
type Network struct {
	// NotReady is what Ready returns.
	NotReady error

	mu       sync.Mutex
	attached map[string]*network.Attachment
	last     netip.Addr
}

// Attach implements network.Network.
func (n *Network) Attach(_ context.Context, att *network.Attachment) (*network.Result, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.attached == nil {
		n.attached, n.last = map[string]*network.Attachment{}, netip.MustParseAddr("10.99.0.1")
	}
	if n.attached[att.SandboxID] != nil {
		return nil, fmt.Errorf("sandbox %q is attached already: %w", att.SandboxID, errs.Exists)
	}
	n.attached[att.SandboxID] = att
	n.last = n.last.Next()
	return &network.Result{IPs: []netip.Addr{n.last, netip.MustParseAddr("fd00:99::2")}}, nil
}

// Adopt implements network.Adopter.
func (n *Network) Adopt(_ context.Context, att *network.Attachment) (*network.Result, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.attached == nil {
		n.attached, n.last = map[string]*network.Attachment{}, netip.MustParseAddr("10.99.0.1")
	}
	n.attached[att.SandboxID] = att
	return &network.Result{IPs: []netip.Addr{netip.MustParseAddr("10.42.0.7")}}, nil
}

// Detach implements network.Network.
func (n *Network) Detach(_ context.Context, att *network.Attachment) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.attached, att.SandboxID)
	return nil
}

// Ready implements network.Network.
func (n *Network) Ready(context.Context) error { return n.NotReady }

// GC implements network.Network.
func (n *Network) GC(_ context.Context, live []string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	for id := range n.attached {
		if !slices.Contains(live, id) {
			delete(n.attached, id)
		}
	}
	return nil
}

// SetPodCIDR implements network.Network.
func (n *Network) SetPodCIDR(context.Context, string) error { return nil }

// Info implements network.Network.
func (n *Network) Info() map[string]string { return map[string]string{"mode": "fake"} }

// Close implements network.Network.
func (n *Network) Close() error { return nil }

// Left names the sandboxes that are attached.
func (n *Network) Left() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	var left []string
	for id := range n.attached {
		left = append(left, "attachment of "+id)
	}
	slices.Sort(left)
	return left
}

// Images is an image store in memory that holds one image.
type Images struct {
	Image image.Image
	// Admits decides whether pods of a namespace may use the image by a name, nil if all may.
	Admits func(namespace, name string) error
}

// ImageName is the name of the image that NewImages holds.
const ImageName = "registry.test/fake:1"

// NewImages returns a store with one image, ImageName.
func NewImages() *Images {
	return &Images{Image: image.Image{
		ID: "sha256:fa4e", Tags: []string{ImageName}, Digests: []string{"registry.test/fake@sha256:d19e57"},
		Size: 1, OS: "linux", Architecture: "amd64", Config: imagespec.ImageConfig{StopSignal: "SIGTERM"},
	}}
}

// Get implements image.Store.
func (i *Images) Get(_ context.Context, ref string) (*image.Image, error) {
	if ref == i.Image.ID || slices.Contains(i.Image.Tags, ref) || slices.Contains(i.Image.Digests, ref) {
		img := i.Image
		return &img, nil
	}
	return nil, fmt.Errorf("image %q: %w", ref, errs.NotFound)
}

// GetFor implements image.PlatformStore. An image for linux is one for the node.
func (i *Images) GetFor(ctx context.Context, platform, ref string) (*image.Image, error) {
	img, err := i.Get(ctx, ref)
	if err == nil && img.Platform() != platform && (platform != "" || img.OS != "linux") {
		return nil, &image.OtherPlatformError{Ref: ref, Has: []string{img.Platform()}, Wants: platform}
	}
	return img, err
}

// RemoveFor implements image.PlatformStore.
func (i *Images) RemoveFor(ctx context.Context, _, ref string) error { return i.Remove(ctx, ref) }

// Details implements image.Store.
func (i *Images) Details(ctx context.Context, ref string) (*imagespec.Image, error) {
	img, err := i.Get(ctx, ref)
	if err != nil {
		return nil, err
	}
	return &imagespec.Image{Platform: imagespec.Platform{OS: img.OS, Architecture: img.Architecture}, Config: img.Config}, nil
}

// List implements image.Store.
func (i *Images) List(context.Context) ([]image.Image, error) { return []image.Image{i.Image}, nil }

// Pull implements image.Store: it has what Get finds and reaches no registry.
func (i *Images) Pull(ctx context.Context, ref string, _ image.Auth, _ func(image.Progress)) (string, error) {
	img, err := i.Get(ctx, ref)
	if err != nil {
		return "", err
	}
	return img.ID, nil
}

// Admit implements image.Admitter.
func (i *Images) Admit(_ context.Context, namespace, _, name string) error {
	if i.Admits == nil {
		return nil
	}
	return i.Admits(namespace, name)
}

// Remove implements image.Store.
func (i *Images) Remove(context.Context, string) error {
	return fmt.Errorf("the fake store keeps its image: %w", errs.Unsupported)
}

// Usage implements image.Store.
func (i *Images) Usage(context.Context) (image.DiskUsage, error) {
	usage := []image.Usage{{Mountpoint: "/"}}
	return image.DiskUsage{Images: usage, Containers: usage}, nil
}

// Import implements image.Store.
func (i *Images) Import(context.Context, io.Reader, string, bool, func(image.Progress)) ([]image.Image, error) {
	return nil, fmt.Errorf("the fake store imports nothing: %w", errs.Unsupported)
}

// Export implements image.Store: its archive is a line for each image.
func (i *Images) Export(ctx context.Context, refs []string, to io.Writer) error {
	for _, ref := range refs {
		if _, err := i.Get(ctx, ref); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintf(to, "archive of %q\n", refs)
	return err
}
