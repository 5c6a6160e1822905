"""What `tokenweir inspect` can be asked: apart, because its readers take long to import."""

import argparse


def add_inspect_verbs(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """The arguments of `tokenweir inspect`."""
    for verb, what in (("request", "request"), ("response", "answer")):
        text = f"print what is read of a captured {what}: one JSON line a file (docs/captures.md)"
        sub = verbs.add_parser(verb, help=text, description=text)
        sub.add_argument("files", nargs="+", metavar="FILE", help="a capture; - is standard input")
        if verb == "response":
            text = "also print what we count of the text, as counted_output_tokens"
            sub.add_argument("--counted", action="store_true", help=text)
