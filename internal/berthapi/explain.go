package berthapi

import (
	"github.com/opencontainers/go-digest"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/berthrun/berth/internal/berthapi/berthpb"
	"github.com/berthrun/berth/internal/image"
)

func explanationToProto(e *image.Explanation) *berthpb.ExplainImageResponse {
	resp := &berthpb.ExplainImageResponse{Ref: e.Ref, ShortName: e.ShortName, Candidates: e.Candidates}
	for i := range e.Endpoints {
		at := &e.Endpoints[i]
		sent := &berthpb.Endpoint{
			Url: validText(at.URL), Mirror: at.Mirror, Source: validText(at.Source), Problem: validText(at.Problem), Credentials: validText(at.Credentials),
			Capabilities: at.Capabilities, Skipped: at.Skipped, Health: validText(at.Health),
		}
		for _, text := range at.TLS {
			sent.Tls = append(sent.Tls, validText(text))
		}
		if a := at.Attempt; a != nil {
			sent.Attempt = &berthpb.Attempt{Took: durationpb.New(a.Took), Digest: a.Digest.String(), MediaType: validText(a.MediaType), Fault: validText(a.Fault)}
		}
		resp.Endpoints = append(resp.Endpoints, sent)
	}
	return resp
}

func explanationFromProto(resp *berthpb.ExplainImageResponse) *image.Explanation {
	e := &image.Explanation{Ref: resp.GetRef(), ShortName: resp.GetShortName(), Candidates: resp.GetCandidates()}
	for _, at := range resp.GetEndpoints() {
		got := image.Endpoint{
			URL: at.GetUrl(), Mirror: at.GetMirror(), Source: at.GetSource(), Problem: at.GetProblem(), Credentials: at.GetCredentials(),
			TLS: at.GetTls(), Capabilities: at.GetCapabilities(), Skipped: at.GetSkipped(), Health: at.GetHealth(),
		}
		if a := at.GetAttempt(); a != nil {
			got.Attempt = &image.Attempt{Took: a.GetTook().AsDuration(), Digest: digest.Digest(a.GetDigest()), MediaType: a.GetMediaType(), Fault: a.GetFault()}
		}
		e.Endpoints = append(e.Endpoints, got)
	}
	return e
}
