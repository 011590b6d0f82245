"""Reading libraries and headers; from a reviewed list to C."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from oombisect.errors import OombisectError
from oombisect.virtual_gpu.elf import read_library
from oombisect.virtual_gpu.generate import (
    OURS,
    Answer,
    driver_names,
    nvml_functions,
    read_answers,
    stub_source,
)
from oombisect.virtual_gpu.prototypes import Output, read_prototypes

needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")

SOURCE = """
int counter = 3;
static int hidden(void) { return counter; }
__attribute__((visibility("hidden"))) int internal(void) { return hidden(); }
extern int elsewhere(int);
int first(void) { return internal() + elsewhere(1); }
int second(void) { return 2; }
"""


@needs_compiler
def test_a_library_is_read_as_nm_reads_it(tmp_path: Path) -> None:
    (tmp_path / "a.c").write_text(SOURCE)
    (tmp_path / "a.map").write_text("libfirst.so.1 { first; };\nlibsecond.so.2 { second; };\n")
    library = tmp_path / "a.so"
    command = [
        "cc",
        "-shared",
        "-fPIC",
        "-o",
        library,
        tmp_path / "a.c",
        "-Wl,-soname,liba.so.1",
        "-Wl,--no-as-needed",
        "-lm",
    ]
    subprocess.run([*command, f"-Wl,--version-script={tmp_path / 'a.map'}"], check=True)
    read = read_library(library)
    assert read.soname == "liba.so.1" and "libm.so.6" in read.needed
    assert {"first", "second"} <= read.functions and "elsewhere" in read.undefined
    assert not {"counter", "hidden", "internal"} & read.functions
    assert read.versions == ("libfirst.so.1", "libsecond.so.2")
    if shutil.which("nm"):
        out = subprocess.run(["nm", "-D", library], capture_output=True, text=True, check=True).stdout
        rows = [line.split() for line in out.splitlines()]
        assert read.functions == {row[-1].split("@")[0] for row in rows if row[-2] in "TWi" and len(row) == 3}
        assert read.undefined == {row[-1].split("@")[0] for row in rows if row[-2] in "Uw" and len(row) == 2}


@needs_compiler
def test_an_object_file_gives_its_public_functions(tmp_path: Path) -> None:
    (tmp_path / "a.c").write_text(SOURCE)
    subprocess.run(["cc", "-c", "-fPIC", "-o", tmp_path / "a.o", tmp_path / "a.c"], check=True)
    assert read_library(tmp_path / "a.o").functions == {"first", "second"}


@pytest.mark.parametrize("content", [b"", b"text", b"\x7fELF\x02\x01" + b"\0" * 100, b"\x7fELF\x01\x01" + b"\0" * 60])
def test_what_is_no_library(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.so").write_bytes(content)
    if content.startswith(b"\x7fELF\x02"):
        assert read_library(tmp_path / "x.so").functions == frozenset()  # an ELF file with nothing in it
        return
    with pytest.raises(OombisectError, match="cannot be read"):
        read_library(tmp_path / "x.so")


def test_prototypes(tmp_path: Path) -> None:
    (tmp_path / "lib.h").write_text("""
        /* status f(int *not_this); */
        cusolverStatus_t CUSOLVERAPI sizes(Handle_t handle, float alpha, const float *A, double b,
            int *Lwork /* the answer */, size_t *workspaceInBytes, const int *input, int **table, void *any);
        void callback(int (*function)(int), int *after);
        int version(uint32_t* version);
    """)
    found = read_prototypes([tmp_path / "lib.h"])
    assert found["sizes"] == {"lwork": Output(2, 32), "workspaceinbytes": Output(3, 64)}
    assert found["version"] == {"version": Output(0, 32)}
    assert "callback" not in found and "f" not in found


def test_stubs() -> None:
    answers = [
        Answer("libGetVersion", ("return:7",)),
        Answer("libSpecial*", ()),
        Answer("lib*Size", ("put:bytes:0",)),
        Answer("libSpecialCase", ("success",)),
        Answer("libRun*", ("launch",)),
    ]
    universe = ["libGetVersion", "libSpecialCase", "libASize", "libBSize", "libRunIt", "libOther", "libWritten"]
    prototypes = {"libASize": {"bytes": Output(3, 64)}}
    source, answered = stub_source(universe, frozenset({"libWritten"}), answers, prototypes)
    assert answered == ["libASize", "libGetVersion", "libRunIt"]
    assert "FUNCTION(libASize, ANSWER_PUT64(a3, 0) return 0;)" in source
    assert "FUNCTION(libGetVersion, ANSWER_RETURN(7))" in source
    assert "FUNCTION(libRunIt, ANSWER_LAUNCH return 0;)" in source
    for unanswered in ("libSpecialCase", "libBSize", "libOther"):  # an exception, an unknown parameter, nobody's
        assert f"UNSTUBBED({unanswered})" in source
    assert "libWritten" not in source


@pytest.mark.parametrize("line", ["f ignore", "f create", "f put:size", "f return:x", "f success:1"])
def test_a_behaviour_nobody_knows(tmp_path: Path, line: str) -> None:
    (tmp_path / "answers.txt").write_text(f"# head\nok success\n{line}\n")
    with pytest.raises(OombisectError, match=r"answers\.txt:3"):
        read_answers(tmp_path / "answers.txt")


def test_the_shipped_list_has_no_blanket_default() -> None:
    answers = read_answers()
    assert len(answers) > 50
    for answer in answers:
        letters = answer.pattern.split("*")[0].split("?")[0].split("[")[0]
        assert len(letters) >= 5 or len(answer.pattern.replace("*", "").replace("?", "")) >= 9, answer.pattern
    families = ("cublas", "cudnn", "cusolver", "cusparse", "nccl", "cuda", "cu", "nvml", "nvrtc", "cufft", "curand")
    assert not {f"{family}*" for family in families} & {answer.pattern for answer in answers}
    assert len(nvml_functions()) > 300 and all(name.startswith("nvml") for name in nvml_functions())


def test_members_of_families_that_give_something_back_are_not_answered() -> None:
    """A family's pattern must not reach a function that writes a result: it would be left unwritten."""
    names = [
        "cudnnSetTensor", "cuptiActivityGetAttribute", "cusolverDnXgesvdjGetSweeps", "cusolverDnSpotrfHost",
        "cusolverDnXsyevdx", "cusolverDnSsyevdx", "cusolverDnDgesvdaStridedBatched", "cublasSdot",
        "cublasLtMatmulDescGetAttribute", "cudnnGetTensorNdDescriptor", "cublasIsamax_v2", "ncclCommGetAsyncError",
        "cufftGetSize", "cusparseSpMV_bufferSize",
    ]  # fmt: skip
    assert stub_source(names, frozenset(), read_answers(), {})[1] == []
    assert len(stub_source(["cublasSdot_v2", "cudnnSetStreamX"], frozenset(), read_answers(), {})[1]) == 2


@pytest.mark.parametrize("name", ["cublasSgemm_v2", "cuMemAlloc_v2", "__cudaRegisterVar", "nvmlInit_v2", "ncclSend"])
def test_names_the_stand_in_may_claim(name: str) -> None:
    assert OURS.match(name)


@pytest.mark.parametrize(
    "name", ["dgemm_", "cblas_dgemm", "fftw_plan_dft", "curl_easy_init", "curses", "cupid", "_ZN3ncclE"]
)
def test_names_that_belong_to_others(name: str) -> None:
    assert not OURS.match(name)


def test_driver_names_lead_to_the_abi_of_their_version() -> None:
    cuda_h = """
        #define cuMemAlloc                          cuMemAlloc_v2
        #define cuStreamGetCaptureInfo              __CUDA_API_PTSZ(cuStreamGetCaptureInfo_v3)
        CUresult CUDAAPI cuMemAlloc(CUdeviceptr *dptr, size_t bytesize);
        CUresult CUDAAPI cuStreamGetCaptureInfo(CUstream s);
        CUresult CUDAAPI cuStreamGetCaptureInfo_v2(CUstream s);
        CUresult CUDAAPI cuInit(unsigned int Flags);
        #define cuGraphInstantiate                  cuGraphInstantiateWithFlags
        CUresult CUDAAPI cuGraphInstantiate(CUgraphExec *e, CUgraph g, unsigned long long flags);
        CUresult CUDAAPI cuGraphInstantiate_v2(CUgraphExec *e, CUgraph g, CUgraphNode *n, char *b, size_t s);
        #define cuStreamWaitValue32                 cuStreamWaitValue32
        CUresult CUDAAPI cuStreamWaitValue32(CUstream s);
        CUresult CUDAAPI cuStreamWaitValue32_v2(CUstream s);
    """
    typedefs_h = """
        typedef CUresult (CUDAAPI *PFN_cuMemAlloc_v3020)(CUdeviceptr_v2 *dptr, size_t bytesize);
        typedef CUresult (CUDAAPI *PFN_cuInit_v2000)(unsigned int Flags);
        typedef CUresult (CUDAAPI *PFN_cuStreamGetCaptureInfo_v11030)(CUstream s);
        typedef CUresult (CUDAAPI *PFN_cuStreamGetCaptureInfo_v12030)(CUstream s);
        typedef CUresult (CUDAAPI *PFN_cuGraphInstantiate_v11000)(CUgraphExec *e);
        typedef CUresult (CUDAAPI *PFN_cuGraphInstantiate_v12000)(CUgraphExec *e);
        typedef CUresult (CUDAAPI *PFN_cuStreamWaitValue32_v8000)(CUstream s);
        typedef CUresult (CUDAAPI *PFN_cuStreamWaitValue32_v11070)(CUstream s);
    """
    rows = [(row.name, row.since, row.symbol) for row in driver_names(cuda_h, typedefs_h)]
    assert ("cuMemAlloc", 3020, "cuMemAlloc_v2") in rows and ("cuInit", 2000, "cuInit") in rows
    capture = [row for row in rows if row[0] == "cuStreamGetCaptureInfo"]
    assert capture == [
        ("cuStreamGetCaptureInfo", 12030, "cuStreamGetCaptureInfo_v3"),
        ("cuStreamGetCaptureInfo", 11030, "cuStreamGetCaptureInfo_v2"),
    ]
    assert ("cuGraphInstantiate", 12000, "cuGraphInstantiateWithFlags") in rows
    assert ("cuGraphInstantiate", 11000, "cuGraphInstantiate_v2") in rows
    assert ("cuStreamWaitValue32", 11070, "cuStreamWaitValue32_v2") in rows
    assert ("cuStreamWaitValue32", 8000, "cuStreamWaitValue32") in rows
