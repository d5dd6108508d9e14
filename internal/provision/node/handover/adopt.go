package handover

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/provision"
)

// AdoptImages copies the images of the old runtime into the new one, out of the old one's blobs, so
// that nothing is pulled again. Both runtimes run meanwhile. An image with missing content is
// pulled later.
type AdoptImages struct {
	M        provision.Meta
	Old, New Runtime
}

// ID is "adopt images of RUNTIME".
func (a AdoptImages) ID() string { return "adopt-images " + a.Old.Name }

// Meta returns M.
func (a AdoptImages) Meta() provision.Meta { return a.M }

// Objects are none: images are a cache, and the kubelet removes unused ones.
func (a AdoptImages) Objects(context.Context, provision.Host) ([]provision.Object, error) {
	return nil, nil
}

// Check lists the images that the new runtime lacks and that can be copied.
func (a AdoptImages) Check(ctx context.Context, host provision.Host) (provision.Change, error) {
	var change provision.Change
	missing, err := a.missing(ctx, host)
	if err != nil {
		return change, err
	}
	for _, img := range missing {
		for _, name := range img.names {
			change.Diffs = append(change.Diffs, provision.Diff{
				Object: provision.Object{Kind: "image", Name: a.New.Endpoint + "#" + name},
				Action: provision.Create, Reason: "is taken over from " + a.Old.Name + " by content, not pulled",
			})
		}
	}
	return change, nil
}

// missing lists the images to copy. An old runtime that does not answer has no images; nor has a
// new one.
func (a AdoptImages) missing(ctx context.Context, host provision.Host) ([]image, error) {
	if !host.Live() || a.Old.Content == "" {
		return nil, nil
	}
	there, err := answers(ctx, a.Old.Endpoint)
	if err != nil || !there {
		return nil, err
	}
	images, err := a.images(ctx, host)
	if err != nil {
		return nil, err
	}
	has, err := names(ctx, a.New.Endpoint)
	if err != nil && !errors.Is(err, errs.Unavailable) {
		return nil, err
	}
	from := archiver{files: host.Files(), content: a.Old.Content}
	var missing []image
	for _, img := range images {
		img.names = slices.DeleteFunc(img.names, func(name string) bool { return has[name] })
		if len(img.names) == 0 {
			continue
		}
		if _, _, err := from.plan(img); err != nil {
			continue // content is missing: it is pulled when it is used
		}
		missing = append(missing, img)
	}
	return missing, nil
}

// images lists the images of the old runtime. containerd reports the digests of imported images
// through ctr only.
func (a AdoptImages) images(ctx context.Context, host provision.Host) ([]image, error) {
	byDigest := map[digest.Digest]*image{}
	var order []digest.Digest
	note := func(name string, d digest.Digest) {
		if byDigest[d] == nil {
			byDigest[d] = &image{digest: d}
			order = append(order, d)
		}
		byDigest[d].names = append(byDigest[d].names, name)
	}
	var err error
	if a.Old.Name == "containerd" {
		err = listByCtr(ctx, host, a.Old.Binary, a.Old.Endpoint, note)
	} else {
		err = listByCRI(ctx, a.Old.Endpoint, note)
	}
	if err != nil {
		return nil, err
	}
	slices.Sort(order)
	var images []image
	for _, d := range order {
		slices.Sort(byDigest[d].names)
		images = append(images, *byDigest[d])
	}
	return images, nil
}

// listByCtr reads `ctr images ls`: name, type, digest, and more.
func listByCtr(ctx context.Context, host provision.Host, ctr, endpoint string, note func(string, digest.Digest)) error {
	out, err := host.Run(ctx, provision.Command{Args: []string{ctr, "--address", socket(endpoint), "-n", "k8s.io", "images", "ls"}})
	if err != nil {
		return fmt.Errorf("cannot list containerd's images: %w", err)
	}
	for line := range strings.Lines(string(out)) {
		fields := strings.Fields(line)
		if len(fields) < 3 || digest.Digest(fields[2]).Validate() != nil {
			continue // the head of the table
		}
		// containerd names an image by its id and by its digest, too; so does whoever gets it.
		if _, ok := parseTag(fields[0]); ok {
			note(fields[0], digest.Digest(fields[2]))
		}
	}
	return nil
}

// listByCRI joins an image's tags with the digest of the same repository.
func listByCRI(ctx context.Context, endpoint string, note func(string, digest.Digest)) error {
	images, err := listImages(ctx, endpoint)
	if err != nil {
		return err
	}
	for _, img := range images {
		for _, tag := range img.GetRepoTags() {
			tagged, ok := parseTag(tag)
			if !ok {
				continue
			}
			if d, ok := digestIn(tagged, img.GetRepoDigests()); ok {
				note(tag, d)
			}
		}
	}
	return nil
}

// names lists what a runtime calls its images.
func names(ctx context.Context, endpoint string) (map[string]bool, error) {
	images, err := listImages(ctx, endpoint)
	has := map[string]bool{}
	for _, img := range images {
		for _, tag := range img.GetRepoTags() {
			has[tag] = true
		}
	}
	return has, err
}

func listImages(ctx context.Context, endpoint string) ([]*runtimeapi.Image, error) {
	conn, err := connect(ctx, endpoint)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	resp, err := conn.Images.ListImages(ctx, &runtimeapi.ListImagesRequest{})
	if err != nil {
		return nil, fmt.Errorf("cannot list the images of %s: %w", endpoint, err)
	}
	return resp.GetImages(), nil
}

// parseTag parses the name of an image. ok is false for one without a tag, one by digest, and an id.
func parseTag(name string) (tagged reference.NamedTagged, ok bool) {
	parsed, err := reference.ParseAnyReference(name)
	if err != nil {
		return nil, false
	}
	if _, digested := parsed.(reference.Digested); digested {
		return nil, false
	}
	tagged, ok = parsed.(reference.NamedTagged)
	return tagged, ok
}

// digestIn returns the digest that names the image of tagged in its repository. repoDigests are
// references by digest; ok is false if none is of that repository.
func digestIn(tagged reference.Named, repoDigests []string) (d digest.Digest, ok bool) {
	for _, name := range repoDigests {
		named, err := reference.ParseNormalizedNamed(name)
		if err != nil || named.Name() != tagged.Name() {
			continue
		}
		if digested, ok := named.(reference.Digested); ok {
			return digested.Digest(), true
		}
	}
	return "", false
}

func socket(endpoint string) string { return strings.TrimPrefix(endpoint, "unix://") }

// Apply streams each image that is missing to the program that loads it.
func (a AdoptImages) Apply(ctx context.Context, host provision.Host) error {
	missing, err := a.missing(ctx, host)
	if err != nil {
		return err
	}
	from := archiver{files: host.Files(), content: a.Old.Content}
	for i, img := range missing {
		provision.Note(ctx, "image %d of %d: %s", i+1, len(missing), img.names[0])
		if err := a.load(ctx, host, from, img); err != nil {
			return fmt.Errorf("cannot take over image %s from %s: %w", img.names[0], a.Old.Name, err)
		}
	}
	return nil
}

func (a AdoptImages) load(ctx context.Context, host provision.Host, from archiver, img image) error {
	args := []string{a.New.Binary, "image", "import", "--endpoint", a.New.Endpoint, "-"}
	if a.New.Name == "containerd" {
		args = []string{a.New.Binary, "--address", socket(a.New.Endpoint), "-n", "k8s.io", "images", "import", "-"}
	}
	r, w := io.Pipe()
	wrote := make(chan error, 1)
	go func() {
		err := from.write(w, img)
		w.CloseWithError(err) // nil is the end of the archive
		wrote <- err
	}()
	_, err := host.Run(ctx, provision.Command{Args: args, Stdin: r})
	r.CloseWithError(errors.New("the program that loads has ended"))
	writeErr := <-wrote
	if err != nil {
		return err
	}
	return writeErr
}
