package api

import (
	"google.golang.org/grpc/codes"

	"github.com/rhumbdb/rhumb"
)

// codeOf maps kinds to gRPC codes. Several kinds share a code; the Error in the details of the
// status distinguishes them.
var codeOf = [...]codes.Code{
	rhumb.Other:            codes.Unknown,
	rhumb.InvalidArgument:  codes.InvalidArgument,
	rhumb.NotFound:         codes.NotFound,
	rhumb.AlreadyExists:    codes.AlreadyExists,
	rhumb.ConditionFailed:  codes.FailedPrecondition,
	rhumb.NotPrimary:       codes.Aborted,
	rhumb.Unavailable:      codes.Unavailable,
	rhumb.Overloaded:       codes.ResourceExhausted,
	rhumb.Unknown:          codes.Unknown,
	rhumb.Corrupt:          codes.DataLoss,
	rhumb.Unauthenticated:  codes.Unauthenticated,
	rhumb.PermissionDenied: codes.PermissionDenied,
	rhumb.DeadlineExceeded: codes.DeadlineExceeded,
	rhumb.Canceled:         codes.Canceled,
	rhumb.TooLarge:         codes.OutOfRange,
	rhumb.DiskFull:         codes.ResourceExhausted,
	rhumb.WrongCluster:     codes.FailedPrecondition,
	rhumb.Incompatible:     codes.Unimplemented,
	rhumb.Conflict:         codes.Aborted,
	rhumb.Expired:          codes.OutOfRange,
	rhumb.Internal:         codes.Internal,
}

// kindOf maps gRPC codes to kinds, for statuses without details. Such a status comes from gRPC
// itself or from a proxy, not from a node, so it does not reveal whether a write was applied. So no
// code maps to a kind that promises "not applied": Unavailable, for example, maps to Unknown.
var kindOf = [...]rhumb.Kind{
	codes.OK:                 rhumb.Other,
	codes.Canceled:           rhumb.Unknown,
	codes.Unknown:            rhumb.Other,
	codes.InvalidArgument:    rhumb.InvalidArgument,
	codes.DeadlineExceeded:   rhumb.DeadlineExceeded,
	codes.NotFound:           rhumb.NotFound,
	codes.AlreadyExists:      rhumb.AlreadyExists,
	codes.PermissionDenied:   rhumb.PermissionDenied,
	codes.ResourceExhausted:  rhumb.TooLarge, // gRPC's code for a message above its size limit, which is never delivered
	codes.FailedPrecondition: rhumb.Other,
	codes.Aborted:            rhumb.Other,
	codes.OutOfRange:         rhumb.Other,
	codes.Unimplemented:      rhumb.Incompatible,
	codes.Internal:           rhumb.Other,
	codes.Unavailable:        rhumb.Unknown,
	codes.DataLoss:           rhumb.Other,
	codes.Unauthenticated:    rhumb.Unauthenticated,
}

// Code returns the gRPC code of a kind.
func Code(k rhumb.Kind) codes.Code {
	if int(k) < len(codeOf) {
		return codeOf[k]
	}
	return codes.Unknown
}

// KindOfCode returns the kind of a status without an Error in its details.
func KindOfCode(c codes.Code) rhumb.Kind {
	if int(c) < len(kindOf) {
		return kindOf[c]
	}
	return rhumb.Other
}
