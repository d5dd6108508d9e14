package imagecmd

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/cli/show"
	"github.com/berthrun/berth/internal/criclient"
	"github.com/berthrun/berth/internal/errs"
)

// usersOf names the containers that use each image, by the image's id: those that have it as their root filesystem or
// as a volume, whatever their state is. They are words for people.
func usersOf(ctx context.Context, conn *criclient.Conn) (map[string][]string, error) {
	pods, err := podNames(ctx, conn)
	if err != nil {
		return nil, err
	}
	resp, err := conn.Runtime.ListContainers(ctx, &runtimeapi.ListContainersRequest{})
	if err != nil {
		return nil, err
	}
	users, finder := map[string][]string{}, idFinder{conn, map[string]string{}}
	for _, c := range resp.GetContainers() {
		used, err := finder.usedBy(ctx, c)
		if errors.Is(err, errs.NotFound) {
			continue // the container is removed meanwhile
		}
		if err != nil {
			return nil, fmt.Errorf("cannot find the images of container %s: %w", c.GetId(), err)
		}
		name := fmt.Sprintf("%s (%s)", c.GetMetadata().GetName(), show.ID(c.GetId()))
		if pod := pods[c.GetPodSandboxId()]; pod != "" {
			name += " of pod " + pod
		}
		for id := range used {
			users[id] = append(users[id], name)
		}
	}
	delete(users, "") // an image that the runtime does not have any more
	return users, nil
}

// podNames are the names of pods, with their namespaces, by the ids of their sandboxes.
func podNames(ctx context.Context, conn *criclient.Conn) (map[string]string, error) {
	resp, err := conn.Runtime.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		return nil, err
	}
	names := map[string]string{}
	for _, pod := range resp.GetItems() {
		names[pod.GetId()] = pod.GetMetadata().GetNamespace() + "/" + pod.GetMetadata().GetName()
	}
	return names, nil
}

// idFinder finds the ids of images, and asks for each name once.
type idFinder struct {
	conn *criclient.Conn
	ids  map[string]string
}

// usedBy returns the ids of the images that a container uses. The id "" is that of an image that is removed.
func (f *idFinder) usedBy(ctx context.Context, c *runtimeapi.Container) (map[string]bool, error) {
	resp, err := f.conn.Runtime.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: c.GetId()})
	if err != nil {
		return nil, err
	}
	root := cmp.Or(c.GetImageId(), resp.GetStatus().GetImageId())
	if root == "" {
		if root, err = f.find(ctx, c.GetImage()); err != nil {
			return nil, err
		}
	}
	used := map[string]bool{root: true}
	for _, mount := range resp.GetStatus().GetMounts() {
		if mount.GetImage() == nil {
			continue
		}
		id, err := f.find(ctx, &runtimeapi.ImageSpec{Image: cmp.Or(mount.GetImage().GetImageRef(), mount.GetImage().GetImage())})
		if err != nil {
			return nil, err
		}
		used[id] = true
	}
	return used, nil
}

func (f *idFinder) find(ctx context.Context, spec *runtimeapi.ImageSpec) (string, error) {
	if id, known := f.ids[spec.GetImage()]; known {
		return id, nil
	}
	resp, err := f.conn.Images.ImageStatus(ctx, &runtimeapi.ImageStatusRequest{Image: spec})
	if err != nil {
		return "", err
	}
	f.ids[spec.GetImage()] = resp.GetImage().GetId()
	return resp.GetImage().GetId(), nil
}
