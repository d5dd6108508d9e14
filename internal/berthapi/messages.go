package berthapi

import (
	"strings"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/berthrun/berth/internal/berthapi/berthpb"
	"github.com/berthrun/berth/internal/image"
)

func jobsToProto(jobs []Job) []*berthpb.Job {
	all := make([]*berthpb.Job, 0, len(jobs))
	for i := range jobs {
		all = append(all, jobToProto(&jobs[i]))
	}
	return all
}

func jobToProto(j *Job) *berthpb.Job {
	return &berthpb.Job{
		Key: validText(j.Key), Kind: j.Kind, Id: j.ID,
		Stage: validText(j.Stage), WaitsFor: validText(j.WaitsFor), StageAge: durationpb.New(j.StageAge), Slow: j.Slow,
		Age: durationpb.New(j.Age), Waiters: int64(j.Waiters), Cancelled: j.Cancelled,
		FetchedBytes: j.FetchedBytes, LayerBytes: j.LayerBytes,
	}
}

// validText returns text as a string of protobuf can hold it. A job may wait for a path of an image,
// which has any bytes; one byte that is not UTF-8 would make the whole answer fail.
func validText(text string) string { return strings.ToValidUTF8(text, "\uFFFD") }

func jobsFromProto(jobs []*berthpb.Job) []Job {
	all := make([]Job, 0, len(jobs)) // not nil: clients print it as JSON
	for _, j := range jobs {
		all = append(all, jobFromProto(j))
	}
	return all
}

func jobFromProto(j *berthpb.Job) Job {
	return Job{
		Key: j.GetKey(), Kind: j.GetKind(), ID: j.GetId(),
		Stage: j.GetStage(), WaitsFor: j.GetWaitsFor(), StageAge: j.GetStageAge().AsDuration(), Slow: j.GetSlow(),
		Age: j.GetAge().AsDuration(), Waiters: int(j.GetWaiters()), Cancelled: j.GetCancelled(),
		FetchedBytes: j.GetFetchedBytes(), LayerBytes: j.GetLayerBytes(),
	}
}

func pullToProto(req *PullRequest) *berthpb.PullImageRequest {
	return &berthpb.PullImageRequest{Ref: req.Ref, Handler: req.Handler, Auth: &berthpb.Auth{
		Username: req.Auth.Username, Password: req.Auth.Password,
		IdentityToken: req.Auth.IdentityToken, RegistryToken: req.Auth.RegistryToken,
	}}
}

func authFromProto(auth *berthpb.Auth) image.Auth {
	return image.Auth{
		Username: auth.GetUsername(), Password: auth.GetPassword(),
		IdentityToken: auth.GetIdentityToken(), RegistryToken: auth.GetRegistryToken(),
	}
}

func importToProto(req ImportRequest) *berthpb.ImportOptions {
	return &berthpb.ImportOptions{Name: req.Name, Pin: req.Pin}
}

func progressToProto(p image.Progress) *berthpb.ImageUpdate {
	return &berthpb.ImageUpdate{Progress: &berthpb.Progress{Stage: p.Stage, Done: p.Done, Total: p.Total}}
}

func progressFromProto(p *berthpb.Progress) Progress {
	return Progress{Stage: p.GetStage(), Done: p.GetDone(), Total: p.GetTotal()}
}

func imagesToProto(images ...image.Image) *berthpb.ImageUpdate {
	update := &berthpb.ImageUpdate{}
	for i := range images {
		img := &images[i]
		update.Images = append(update.Images, &berthpb.Image{Id: img.ID, Tags: img.Tags, Size: img.Size})
	}
	return update
}

func imagesFromProto(images []*berthpb.Image) []Image {
	var all []Image
	for _, img := range images {
		all = append(all, Image{ID: img.GetId(), Tags: img.GetTags(), Size: img.GetSize()})
	}
	return all
}

func layersToProto(images []image.Layered) []*berthpb.LayeredImage {
	all := make([]*berthpb.LayeredImage, 0, len(images))
	for i := range images {
		layered := &berthpb.LayeredImage{Id: images[i].ID, Tags: images[i].Tags}
		for _, l := range images[i].Layers {
			layered.Layers = append(layered.Layers, &berthpb.Layer{
				DiffId: l.DiffID.String(), Digest: l.Digest.String(), MediaType: l.MediaType, Size: l.Size,
			})
		}
		all = append(all, layered)
	}
	return all
}

func layersFromProto(images []*berthpb.LayeredImage) []LayeredImage {
	var all []LayeredImage
	for _, img := range images {
		layered := LayeredImage{ID: img.GetId(), Tags: img.GetTags()}
		for _, l := range img.GetLayers() {
			layered.Layers = append(layered.Layers, Layer{DiffID: l.GetDiffId(), Digest: l.GetDigest(), MediaType: l.GetMediaType(), Size: l.GetSize()})
		}
		all = append(all, layered)
	}
	return all
}
