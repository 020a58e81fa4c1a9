"""What users get wrong, a case a line: the command, its exit code, its words.

Every case runs `jaxemb` in a folder with the files of `write_files`: in this
process where it can, in a shell where streams, limits or the environment are
what is wrong. It passes if the exit code is the stated one, the line has the
stated words, and no traceback is seen.
"""

import contextlib
import gzip
import io
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from pyarrow import parquet
from scipy import sparse

import jaxemb  # noqa: F401, of the cases in Python
from jaxemb import __main__ as door
from jaxemb.runtime import process

_ROOT = pathlib.Path(__file__).parents[1]


class Case(NamedTuple):
  """A command that is wrong, and what it should answer."""

  command: str  # what follows `jaxemb`; in a shell, $JAXEMB is the program
  says: str  # words of its output
  code: int = 2
  in_shell: bool = False
  in_python: bool = False  # it is an expression


_SMALL = (
  'train --config=wiki --config.data.min_count=1 --config.model.dim=8 '
  '--config.train.epochs=1 --config.eval.paths=none --config.train.threads=1 '
  '--config.mesh.data=1 --workdir={}'
)


def _text(name: str, says: str, more: str = '') -> Case:
  return Case(
    f'{_SMALL.format("bad")} --config.data.path={name} {more}'.strip(), says
  )


def _set(setting: str, says: str, path: str = 'text.txt') -> Case:
  return _text(path, says, f'--config.{setting}')


def _started(config: str, path: str, says: str, setting: str) -> Case:
  more = f' --config.{setting}' if setting else ''
  command = f'train --config={config} --workdir=bad --config.data.path={path}'
  return Case(f'{command} --config.train.epochs=1{more}', says)


def _clicks(path: str, says: str, setting: str = '') -> Case:
  return _started('ctr', path, says, setting)


def _graph(path: str, says: str, setting: str = '') -> Case:
  return _started('graph', path, says, setting)


def _edges(path: str, says: str, setting: str = '') -> Case:
  return _started('graph:relations', path, says, setting)


def _nodes(path: str, says: str, setting: str = '') -> Case:
  return _started('graphsage', path, says, setting)


def _sets(path: str, says: str, setting: str = '') -> Case:
  return _started('rec', path, says, setting)


def _again(workdir: str, says: str, more: str) -> Case:
  command = f'{_SMALL.format(workdir)} --config.data.path=text.txt {more}'
  return Case(command.strip(), says)


def _python(code: str, says: str) -> Case:
  return Case(code, says, in_python=True)


def _shell(command: str, says: str, code: int = 2) -> Case:
  return Case(command, says, code, True)


def _train(path: str = 'text.txt', workdir: str = 'bad') -> str:
  return f'$JAXEMB {_SMALL.format(workdir)} --config.data.path={path}'


_TEXTS = (
  _text('absent.txt', 'does not exist'),
  _text("'no*.txt'", 'matches no file'),
  _text('empty.txt', 'only empty files'),
  _text('empty', 'no files'),
  _text('punctuation.txt', 'only punctuation'),
  _text('chinese.txt', 'segment it first'),
  _text('one_line.txt', 'segment it first'),
  _text('latin.txt', '--config.data.encoding=cp1252'),
  _text('cyrillic.txt', '--config.data.encoding=cp1251'),
  _text('utf16.txt', '--config.data.encoding=utf-16'),
  _text('binary.txt', 'binary, not text'),
  _text('two.zip', '2 files (text.txt, other.txt)'),
  _text('archive.txt', 'unpack it first'),
  _text('twice.gz', 'packed twice'),
  _text('cut.gz', 'copy or download it again'),
  _text('cut.xml', 'no word'),
  _text('link.txt', 'mend or remove the link'),
  _text('links', 'mend or remove the link'),
  _text('/dev/null', 'not a regular file'),
  _text('one_word.txt', 'give more text'),
  _text('toywiki:5', '20000 words or more'),
  _text('text.txt', 'cannot read', '--config.data.counts=absent'),
  _text('text.txt', 'line 1', '--config.data.counts=text.txt'),
  _text('text.txt', 'occurs in the text', '--config.data.counts=other.txt'),
  _text('text.txt', 'lower --config.data.min_count',
        '--config.data.min_count=9999'),
)  # fmt: skip
_SETTINGS = (
  _set('data.max_vocab=1', 'config.data.max_vocab=1 leaves one word'),
  _set('data.encoding=klingon', 'unknown encoding'),
  _set('data.encoding=ascii', 'not ASCII', 'latin.txt'),
  _set('data.phrases=absent', 'cannot read'),
  _set('data.phrases=text.txt', 'no settings of phrases'),
  _set('data.phrases=99', 'at most 16'),
  _set('data.phrases_connectors=of', 'give a number of passes'),
  _text(
    'text.txt',
    'is none of the scores of npmi',
    '--config.data.phrases=1 '
    '--config.data.phrases_score=npmi --config.data.phrases_threshold=2',
  ),
  _text(
    'text.txt',
    'must be positive',
    '--config.data.phrases=1 --config.data.phrases_threshold=-1',
  ),
  _text(
    'text.txt',
    'has no counts of the phrases',
    '--config.data.phrases=1 --config.data.counts=other.txt',
  ),
  _set('data.tokens=letters', "'words+emoji' or 'whitespace'"),
  _set('data.min_count=0', 'at least 1'),
  _set('data.sample=2', 'at most 1'),
  _set('data.sample=nan', 'at least -1'),
  _set('data.lowercase=perhaps', 'expected true or false'),
  _set('data.min_cuont=5', 'did you mean'),
  _set('model.dim=0', 'at least 1'),
  _set('model.dim=ten', 'invalid int value'),
  _set('model.dim=1.5', 'invalid int value'),
  _set('model.window=0', 'at least 1'),
  _set('model.negatives=-1', 'at least'),
  _set('model.name=word2vec', 'choose'),
  _set('model.loss=softmax', 'set --config.data.source=interactions'),
  _set('model.loss=jax.numpy:dot', 'the loss of each pair, without a sum'),
  _set('model.name=deepfm', 'is a model of clicks'),
  _set('model.name=no:where', 'no'),
  _set('optimizer.name=lion', 'choose'),
  _set('optimizer.learning_rate=-1', 'at least'),
  _set('optimizer.learning_rate=1000', 'training diverged'),
  _set('optimizer.final_learning_rate=5', 'is above'),
  _set('train.batch_words=17', 'must be a multiple of'),
  _set('train.batch_words=16777216', 'more than the text has'),
  _set('train.epochs=-1', 'at least'),
  _set('train.init_from=absent', 'does not exist'),
  _set('mesh.table=2', 'set --config.mesh.data instead'),
  _set('mesh.data=4096', 'devices and there are'),
  _set('table.layout=diagonal', 'choose'),
  _set('table.dtype=float8', 'choose'),
  _set('table.device_bytes=many', 'no size'),
  _set('strategy.name=hope', 'choose'),
  _set('strategy.policy=hope', 'choose'),
  _set('eval.paths=absent', 'no benchmark file or folder'),
  _set('eval.paths=text.txt', 'no benchmark recognised'),
  _set('seed=-1', 'at least'),
  _set('data.source=clicks', 'is no model of clicks'),
  _set('model.dmi=3', 'did you mean --config.model.dim?'),
  _set('optimiser.learning_rate=1', '--config.optimizer.learning_rate?'),
  _set(
    'strategy.divide=random --config.strategy.name=partition',
    "'shuffle' or 'sampling'",
  ),
  _set(
    'table.exchange_dtype=bfloat16 --config.strategy.name=partition',
    'name is replicas or sync',
  ),
)
_COMMANDS = (
  Case('trian', 'there is no command'),
  Case('train --config=absent', 'there is no config file'),
  Case('train --config=wiki:latin', 'no variant'),
  Case('train --config=raises.py', 'line 2: KeyError'),
  Case('train --config=exits.py', 'line 1: SystemExit'),
  Case('train --config=junk.py', 'cannot read the config'),
  Case('train --config=nothing.py', 'cannot read the config'),
  Case('train --confg=wiki', 'did you mean --config?'),
  Case('train --config.data.path', 'expected one argument'),
  Case('train text.txt', 'not understood'),
  Case('train --coordinator=localhost --workdir=bad', 'must be HOST:PORT'),
  Case('train --coordinator=localhost:1', 'the same --workdir'),
  Case(
    'train --coordinator=::1:9 --num_processes=2 --process_id=0 --workdir=bad',
    'IPv4 address',
  ),
  Case('train --num_processes=2', 'need --coordinator'),
  Case('train --workdir=text.txt', 'as the folder of a run'),
  Case('train --config=wiki --workdir=run', 'other settings'),
  Case('train --workdir=of_junk', 'does not hold the settings of a run'),
  Case('query --vectors=absent king', 'absent'),
  Case('query --vectors=text.txt king', 'it is no word2vec file'),
  Case('query --vectors=cut.bin king', 'promises'),
  Case('query --vectors=ten.bin a', 'are not those of a row'),
  Case('query --vectors=header.txt a', 'holds no vectors'),
  Case('query --vectors=run aa0 - aa0', 'vector of zeros'),
  Case('query --vectors=run', 'expected words'),
  Case('query --vectors=run nowhere', 'no vector for'),
  Case('query --vectors=run aa0 + + aa1', 'expected words'),
  Case('query --vectors=run --sense=7 aa0', 'has 1 senses'),
  Case('query --vectors=run --sense=0 aa0 aa1', 'that of one word'),
  Case('query --vectors=run --senses aa0', '--config=mixture', 0),
  Case('query --vectors=run --senses aa0 aa1', 'of one word'),
  Case('query --vectors=run --position=9 aa0', 'outside the sentence'),
  Case('query --vectors=run --topn=0 aa0', '1 or more'),
  Case('query aa0', 'required: --vectors'),
  Case('evaluate --vectors=run --eval=absent', 'absent'),
  Case('merge run --output=run', 'is one of the parts'),
  Case('merge run run --output=merged', 'given twice'),
  Case('merge run absent --output=merged', 'absent'),
  Case('merge run --output=text.txt', 'cannot write'),
  Case('merge run --output=merged --method=mean', 'invalid choice'),
  Case('merge run', 'required: --output'),
  Case('predict --model=absent --data=absent --output=x.csv', 'absent'),
)
_CLICKS = (
  _clicks('absent.csv', 'there is no file'),
  _clicks("''", 'separates nothing', "data.separator=''"),
  _clicks("'no*.csv'", 'there is no file'),
  _clicks('empty.csv', 'has no rows'),
  _clicks('empty', 'no file'),
  _clicks('only_header.csv', 'has no rows'),
  _clicks('no_label.csv', 'give --config.data.columns=label:COLUMN'),
  _clicks('clicks.csv', "names the column 'price'", 'data.columns=label:price'),
  _clicks('clicks.csv', "names the column 'b'",
          'data.columns=category:shop,number:b'),
  _clicks('clicks.csv', "names 'price'", 'data.columns=label:click,price'),
  _clicks('clicks.csv', 'which takes one',
          'data.columns=label:click,label:shop'),
  _clicks('clicks.csv', 'has the label', 'data.columns=label:shop'),
  _clicks('clicks.csv', 'data.columns=label:COLUMN', 'data.label=click'),
  _clicks('clicks.csv', 'data.columns=category:', 'data.categorical=shop'),
  _clicks('clicks.csv', 'data.columns=number:', 'data.numeric=day'),
  _clicks('clicks.csv', 'data.columns=list:', 'data.multi=shop'),
  _clicks('clicks.csv', 'no row for training has', 'data.positive=yes'),
  _clicks('clicks.csv', 'values that are not numbers',
          'data.columns=number:shop,category:day'),
  _clicks('clicks.csv', 'no column of categories', 'data.columns=number:day'),
  _clicks('clicks.csv', 'names column 1 twice',
          'data.columns=label:click,category:click,category:shop'),
  _clicks('twice.csv', 'names a column twice'),
  _clicks('gap.csv', 'must be a header'),
  _clicks('ragged.csv', 'cannot be read, the first is'),
  _clicks('binary.csv', 'is binary'),
  _clicks('latin.csv', 'iconv -f cp1252'),
  # A few bytes that are no letters are replaced, in names.
  _started('ctr:smoke', 'mixed.csv', 'results in', 'train.patience=0')._replace(
    code=0
  ),
  _clicks('clicks.csv', 'as parquet', 'data.format=parquet'),
  _clicks('clicks.csv', 'no column of categories', 'data.format=libsvm'),
  _clicks('clicks.csv', 'cannot be read', 'data.format=criteo'),
  _clicks('clicks.csv', 'click', 'data.format=avazu'),
  _clicks('clicks.csv', 'is not available; choose', 'data.format=json'),
  _clicks('bad.parquet', 'as parquet'),
  _clicks('cut.parquet', 'as parquet'),
  _clicks('two.zip', 'unpack it and give one'),
  _clicks('cut.csv.gz', 'download it again'),
  _clicks('bad.libsvm', 'cannot be read'),
  _clicks('no_label.libsvm', 'no row with a label'),
  _clicks('clicks.csv', 'leave no row',
          'data.valid=0.6 --config.data.test=0.6'),
  _clicks('clicks.csv', 'between 0 and 1', 'data.valid=1.5'),
  _clicks('clicks.csv', 'there is no file', 'data.valid=absent.csv'),
  _clicks('clicks.csv', 'is missing', 'data.valid=no_shop.csv'),
  _clicks('clicks.csv', 'no field of single categories', 'eval.group=price'),
  _clicks('clicks.csv', 'needs rows for validation', 'data.valid='),
  _clicks('clicks.csv', 'needs evaluations',
          'train.patience=2 --config.data.valid=.2 '
          '--config.eval.every_epochs=0'),
  _clicks('clicks.csv', 'choose auc or log_loss', 'eval.monitor=auc,score'),
  _clicks('clicks.csv', 'eval.monitor needs evaluations',
          'eval.monitor=auc,log_loss --config.train.patience=0 '
          '--config.optimizer.plateau_factor=1 --config.eval.every_epochs=0'),
  _clicks('clicks.csv', 'is no model of clicks', 'model.name=cbow'),
  _clicks('clicks.csv', 'positive numbers', 'model.hidden=8,x'),
  _clicks('clicks.csv', 'positive numbers', 'model.hidden=8;4'),
  _clicks('clicks.csv', 'must be at least 1', 'data.min_count=0'),
  _clicks('clicks.csv', 'at most', 'data.hash_size=9000000000'),
  _clicks('clicks.csv', 'lower --config.data.hash_size=2000000000',
          'data.hash_size=2000000000'),
  _clicks('toyclicks:2000', 'more than twice', 'train.batch_examples=16777216'),
  _clicks('toyclicks:2000', 'lower --config.model.hidden',
          'model.hidden=2000000,2000000'),
  _clicks('clicks.csv', 'not used with clicks', 'model.window=3'),
  _clicks('clicks.csv', 'needs all rows on each device',
          'optimizer.rows=all --config.table.layout=row'),
  _clicks('clicks.csv', 'does not', 'strategy.name=partition'),
  _clicks('toyclicks:10', '1000 rows or more'),
  _clicks('toyclicks:1000000000000', 'at most 100,000,000'),
  _clicks('/dev/zero', 'not a regular file'),
  _clicks('toyclicks:5000', 'has its own', 'data.valid=0.3'),
  _clicks('toyclicks:5000', 'has its own', 'data.test=clicks.csv'),
  _clicks('late.csv', 'iconv -f cp1252'),
  _clicks('cr.csv', 'carriage returns'),
  _clicks('rows.json', 'is JSON'),
)  # fmt: skip
_GRAPHS = (
  _graph('absent.tsv', 'there is no file'),
  _graph('empty.txt', 'no line with'),
  _graph('empty', 'no file'),
  _graph('one_column.tsv', 'an edge has two nodes'),
  _graph('loops.tsv', 'without edges'),
  _graph('many_columns.tsv', 'say what they are'),
  _graph('edges.tsv', "names 'size'", 'data.columns=source,size'),
  _graph('edges.tsv', 'declared as target', 'data.columns=source'),
  _graph('edges.tsv', 'has 4 columns',
         'data.columns=source,target,weight,relation'),
  _graph('no_weight.tsv', 'cannot be read',
         'data.columns=source,target,weight'),
  _graph('negative.tsv', 'above 0', 'data.columns=source,target,weight'),
  _graph('nan.tsv', 'above 0', 'data.columns=source,target,weight'),
  _graph('times.tsv', 'look like times'),
  _graph('edges.tsv', 'give the right number', 'data.num_nodes=3'),
  _graph('binary.txt', 'is binary'),
  _graph('bad.npz', 'cannot read'),
  _graph('bad.mat', 'cannot read'),
  _graph('oblong.npz', 'no square matrix'),
  _graph('ones.npy', 'ones.npy'),
  _graph('ogb', 'ogb'),
  _graph('edges.tsv', 'there is no file', 'data.labels=absent.tsv'),
  _graph('edges.tsv', 'none of which the graph has', 'data.labels=other.txt'),
  _graph('edges.tsv', 'no line', 'data.labels=empty.txt'),
  _graph('edges.tsv', 'field(s)', 'data.labels=one_column.tsv'),
  _graph('edges.tsv', 'between 0 and 1', 'data.test=1.5'),
  _graph('edges.tsv', 'no order', 'data.test=last:0.1'),
  _graph('edges.tsv', 'holds out no edge', 'data.valid=0.0001'),
  _graph('edges.tsv', 'no edge between nodes', 'data.test=elsewhere.tsv'),
  _graph('edges.tsv', 'there is no file', 'data.test=absent.tsv'),
  _graph('edges.tsv', 'not used with graph', 'data.min_count=2'),
  _graph('edges.tsv', 'not used with graph', 'eval.paths=text.txt'),
  _graph('edges.tsv', 'at least 2', 'data.walk_length=1'),
  _graph('edges.tsv', 'at least 0.001', 'data.p=0'),
  _graph('edges.tsv', 'choose', 'data.candidates=some'),
  _graph('toygraph:10', 'nodes or more'),
  _graph('toygraph:1000000000000', 'at most 10,000,000'),
  _graph('edges.tsv', 'is a model of edges', 'model.name=line'),
  _graph('late.tsv', 'iconv -f cp1252'),
  _graph('cr.tsv', 'carriage returns'),
  _graph('rows.jsonl', 'is JSON'),
  _edges('edges.tsv', 'no relation was found'),
  _edges('relations.tsv', 'more than the', 'data.partitions=900'),
  _edges('relations.tsv', 'the loss of each positive',
         'model.loss=jax.numpy:dot'),
  _edges('relations.tsv', 'take these, not scores and labels',
         'model.loss=optax:sigmoid_binary_cross_entropy'),
  _edges('edges.tsv', 'no loss of', 'model.loss=negative_sampling'),
  _edges('edges.tsv', 'does not divide edges', 'strategy.name=partition'),
  _edges('edges.tsv', 'not used with edges', 'data.sample=0.1'),
  _edges('relations.tsv', 'multiple of', 'train.batch_examples=100'),
  _edges('relations.tsv', 'edges without a relation', 'data.test=edges.tsv'),
  _edges('relations.tsv', 'eval.k=99999 is more than', 'eval.k=1,99999'),
)  # fmt: skip
_NODES = (
  _nodes('edges.tsv', 'has no features', 'data.targets=walks'),
  _nodes('edges.tsv', 'has no labels', 'model.inputs=rows'),
  _nodes('edges.tsv', 'cannot read absent.npy', 'data.features=absent.npy'),
  _nodes('edges.tsv', 'has the shape', 'data.features=ones.npy'),
  _nodes('edges.tsv', 'by numpy.save', 'data.features=bad.npy'),
  _nodes('edges.tsv', 'give numbers', 'data.features=no_numbers.tsv'),
  _nodes('edges.tsv', 'as many for each', 'data.features=ragged.tsv'),
  _nodes('edges.tsv', 'labelled nodes that are not trained on',
         'data.labels=labels.tsv --config.model.inputs=rows '
         '--config.data.valid=400 --config.data.test=700'),
  _nodes('edges.tsv', 'of node 7 (from 0) are not all finite',
         'data.features=one_nan.npy --config.data.targets=walks'),
  _nodes('edges.tsv', 'of no columns',
         'data.features=none.npy --config.data.targets=walks'),
  _nodes('edges.tsv', 'one for each layer', 'data.fanouts=5,x'),
  _nodes('edges.tsv', 'one for each layer', 'data.fanouts='),
  _nodes('edges.tsv', 'must have 2 sizes',
         'data.fanouts=5,5,5 --config.data.labels=labels.tsv '
         '--config.model.inputs=rows --config.data.valid=.2 '
         '--config.data.test='),
  _nodes("''", 'needs labelled nodes for validation', 'data.valid='),
  _nodes("''", 'must be a number of nodes', 'data.valid=last:0.1'),
  _nodes('edges.tsv', 'choose score or log_loss', 'eval.monitor=auc'),
  _nodes('edges.tsv', 'is a model of edges', 'model.name=line'),
  _nodes('edges.tsv', 'rows of a table', 'table.dtype=int8'),
  _nodes('edges.tsv', 'rows of a table', 'strategy.name=replicas'),
  _nodes('edges.tsv', 'only used when', 'model.temperature=.5'),
  _nodes('edges.tsv', 'positive numbers', 'model.hidden=-4'),
)  # fmt: skip
_INTERACTIONS = (
  _sets('absent.txt', 'absent.txt'),
  _sets('empty.txt', 'only empty files'),
  _sets('one_column.tsv', 'no line `user item'),
  _sets('ratings.txt', "columns='user,item,-,time'"),
  _sets('triples.txt', "columns='user,item,rating>=4'"),
  _sets('stars.csv', "columns='rating:stars>=4'"),
  _sets('titles.tsv', 'behind a tab'),
  _sets('sets.txt', 'has 2 columns for user', 'data.columns=user:1,user:2'),
  _sets('sets.txt', 'names the column', 'data.columns=user:name'),
  _sets('sets_folder', 'neither parts of one input'),
  _sets('sets.txt', 'users; lower it', 'data.min_count=900'),
  _sets(
    'sets.txt', 'holds out nothing of the users', 'data.test=elsewhere.tsv'
  ),
  _sets('sets.txt', 'between 0 and 1', 'data.valid=7.5'),
  _sets('sets.txt', 'config.data.test: there is no file', 'data.test=no.txt'),
  _sets("''", 'have their own', 'data.valid=0.1'),
  _sets('sets.txt', 'is no model of interactions', 'model.name=skipgram'),
  _sets('sets.txt', 'does not learn from', 'model.loss=negative_sampling'),
  _sets('sets.txt', 'does not divide users', 'strategy.name=partition'),
  _sets('sets.txt', 'not used with interactions', 'data.lowercase=false'),
  _sets('sets.txt', 'must be positive numbers', 'eval.k=5,0'),
  _sets('sets.txt', 'must be positive numbers', 'eval.k=,'),
  _sets('sets.txt', 'has a number twice; remove one', 'eval.k=5,1,5'),
  _sets('sets.txt', 'choose ndcg or score', 'eval.monitor=mrr'),
  _sets('sets.txt', 'patience needs data for validation', 'train.patience=2'),
  _sets('sets.txt', 'eval.k=9999 is more than', 'eval.k=9999,5'),
  _sets(
    'sets.txt', 'eval.k=5 needs data for a test', 'eval.k=5 --config.data.test='
  ),
  _sets('sets.txt', 'monitor needs data for validation', 'eval.monitor=score'),
  _sets('sets.txt', 'set 64', 'train.batch_examples=50'),
  _sets('binary.txt', 'binary.txt'),
  _sets('latin_sets.txt', 'iconv -f cp1252'),
)
_PLACES = (
  _set('table.store=cloud', 'is not available'),
  _set('table.layout=rows', 'or module:attribute of your own'),
  _set('table.device_bytes=0', 'no size'),
  _set('table.device_bytes=-5MB', 'no size'),
  _set('table.device_bytes=1KB', 'room'),
  _text('text.txt', 'one device', '--config.table.store=memory '
        '--config.mesh.data=2'),
  _text('text.txt', 'splits tables over devices', '--config.table.store=disk '
        '--config.strategy.name=sync --config.table.layout=row'),
  _text('text.txt', 'is of one process', '--config.table.store=memory '
        '--config.strategy.name=workers'),
  _set('table.evict=fifo', 'is not available'),
  _set('table.evict=lru', 'only used when config.table.store'),
  _set('table.shards=4', 'only used when config.table.store is remote'),
  _set('table.shards=0 --config.table.store=remote', 'at least 1'),
  _set('table.staleness=3', 'only used when config.strategy.name is workers'),
  _set('strategy.num_workers=0 --config.strategy.name=workers', 'at least 1'),
  _set('strategy.num_workers=2', 'only used when config.strategy.name is work'),
  _set('strategy.pace=fast --config.strategy.name=workers', 'choose'),
  _set('strategy.rounds_ahead=3 --config.strategy.name=workers',
       'only used when config.strategy.pace is ssp'),
  _set('strategy.num_parts=3', 'only used when config.strategy.name is part'),
  _set('strategy.part=3 --config.strategy.name=partition '
       '--config.strategy.num_parts=3', 'must be 0..2'),
  _set('strategy.rate=2 --config.strategy.name=partition', 'at most 1'),
  _set('strategy.merge=mean --config.strategy.name=partition', 'choose'),
  _set('strategy.policy=bsp --config.strategy.name=partition', 'remove one'),
  _set('strategy.policy=bsp --config.strategy.sync_every=5',
       'is not used when'),
  _set('strategy.policy=average --config.strategy.num_hot=5',
       'only used when config.strategy.policy is hot'),
  _set('strategy.policy=delayed', 'choose'),
  _set('strategy.sync_every=-1', 'at least 0'),
  _set('table.layout=row', 'only used when config.strategy.name is sync'),
  _set('table.layout=row --config.strategy.name=sync --config.mesh.table=3',
       'must divide 256'),
  _set('table.rounding=nearest', 'only used when config.table.dtype is'),
  _set('train.threads=3 --config.train.fused=false', 'where a kernel takes'),
  _set('train.patience=2', 'only used when config.data.source is'),
  _set('train.checkpoint_every_secs=-1', 'at least 0'),
  _set('optimizer.beta1=1 --config.optimizer.name=adam', 'at most'),
  _set('optimizer.epsilon=-1 --config.optimizer.name=adam', 'at least'),
  _set('optimizer.max_duplicates=-3', 'at least'),
  _set('senses.number=3', 'only used when config.model.name is mixture'),
  _set('senses.number=0 --config.model.name=mixture', 'at least 1'),
  _set('model.name=mixture', 'has no ambiguous words'),
  _set('model.loss=jax.numpy:dot --config.model.name=mixture', 'with several'),
  _set('senses.words=absent --config.model.name=mixture', 'absent'),
  _set('train.init_from=run --config.model.dim=5', 'vectors of 8 numbers'),
  _set('train.init_from=other.bin --config.model.dim=20', 'none of the'),
  _set('train.init_from=run --config.model.loss=hierarchical_softmax',
       'needs other tables'),
  _text('text.txt', 'does not exist', '--from=absent'),
  _text('text.txt', 'config.data.source=clicks', '--from=ctr'),
  _text('text.txt', 'give --config.model.dim=8',
        '--from=run --config.model.dim=5'),
  _text('text.txt', 'no model of fastText', '--from=other.bin'),
  _text('text.txt', 'give one of them',
        '--from=run --config.train.init_from=run'),
  _set('data.grow=true', 'give it as --from'),
  _text('text.txt', 'by the counts of its text',
        '--from=run --config.model.name=mixture'),
  _set('eval.restrict_vocab=-2', 'at least'),
  _set('eval.every_epochs=-1', 'at least'),
  _set('eval.paths=bad_pairs.txt', 'no benchmark recognised'),
  _set('eval.paths=empty', 'no benchmark recognised'),
  _set('eval.paths=binary.txt', 'no benchmark recognised'),
)  # fmt: skip
_OTHERS = (
  Case('plan', '--topology'),
  Case('plan --topology=v9:4x4', 'there is no topology'),
  Case('plan --topology=v5e:2x2 --vocab=many', 'must be a number of words'),
  Case('plan --topology=v5e:2x2 --vocab=-1', 'must be a number of words'),
  Case('plan --topology=v5e:2x2 --config=absent', 'there is no config file'),
  Case('plan --topology=v5e:2x2 --vocab=100 --config.table.store=memory', ''),
  Case('plan --topology=v5e:2x2 --vocba=100', 'is not understood'),
  Case('predict --model=run --data=clicks.csv --output=x.csv',
       'no model of clicks'),
  Case('predict --model=run --data=clicks.csv --output=x.txt', 'must end in'),
  Case('predict --model=run --data=clicks.csv --output=absent/x.csv',
       'make it first'),
  Case('predict --model=ctr --data=absent.csv --output=x.csv', 'no file'),
  Case('predict --model=ctr --data=clicks.csv --output=./clicks.csv',
       'is a file of --data'),
  Case('merge run loop --output=merged', 'loop'),
  *(
    Case(f'{command}{"y" * 5000}', says)
    for command, says in {
      'train --config=': 'there is no config file',
      'train --workdir=': 'File name too long',
      'query aa0 --vectors=': 'File name too long',
      'train --config=ctr --workdir=bad --config.data.path=':
        'there is no file',
      'train --config=graph --workdir=bad --config.data.path=':
        'there is no file',
    }.items()
  ),
  Case('predict --model=ctr --data=no_shop.csv --output=x.csv', 'is missing'),
  Case('predict --model=ctr --data=empty.csv --output=x.csv', 'has no rows'),
  Case('predict --model=ctr --data=bad.parquet --output=x.csv', 'as parquet'),
  Case('predict --model=ctr --data=clicks.csv --output=x.csv --keep=price',
       'there is no column price'),
  Case('predict --model=cut_ctr --data=clicks.csv --output=x.csv',
       'no whole model'),
  Case('predict --model=cut_dense --data=clicks.csv --output=x.csv',
       'no whole model'),
  Case('predict --model=text.txt --data=clicks.csv --output=x.csv', 'text.txt'),
  Case('predict --data=clicks.csv --output=x.csv', 'required: --model'),
  Case('query --vectors=ctr a', 'ctr'),
  Case('query --vectors=no_vocab aa0', 'no_vocab'),
  Case('query --vectors=no_rows aa0', 'no usable vectors.npy'),
  Case('query --vectors=short_vocab aa0', 'export again'),
  Case('query --vectors=complex aa0', 'complex numbers'),
  Case('query --vectors=no_scales aa0', 'their scales'),
  Case('query --vectors=junk_vocab aa0', 'line 1'),
  Case('query --vectors=twice_vocab aa0', 'words twice'),
  Case('query --vectors=ragged_vectors.txt a', 'ragged_vectors.txt'),
  Case('query --vectors=words_for_numbers.txt a', 'words_for_numbers.txt'),
  Case('query --vectors=cut_vectors.gz a', 'cut_vectors.gz'),
  Case('query --vectors=empty a', 'empty'),
  Case('query --vectors=empty.txt a', 'empty.txt'),
  Case('query --vectors=binary.txt a', 'binary.txt'),
  Case('query --vectors=nan.bin aa0', "vector of 'aa0' (row 0) is not finite"),
  Case('query --vectors=infinite.txt aa0', "'aa2' (row 2) is not finite"),
  Case('query --vectors=run --topn=many aa0', 'invalid'),
  Case('query --vectors=run --position=0 aa0 --sense=1', 'not allowed with'),
  Case('query --vectors=run --restrict=5 aa0', 'unrecognized'),
  Case('query --vectors= aa0', 'no usable vectors.npy in .'),
  Case('evaluate --vectors=run', 'required: --eval'),
  Case('evaluate --vectors=run --eval=text.txt', 'no benchmark recognised'),
  Case('evaluate --vectors=run --eval=binary.txt', 'no benchmark recognised'),
  Case('evaluate --vectors=run --eval=empty', 'no benchmark recognised'),
  Case('evaluate --vectors=run --eval=pairs.txt --restrict_vocab=-1',
       '--restrict_vocab must be 0'),
  Case('evaluate --vectors=run --eval=pairs.txt --window=-1',
       '--window must be 0'),
  Case('evaluate --vectors=run --eval=pairs.txt --json=text.txt/x.json',
       'text.txt'),
  Case('evaluate --vectors=nan.bin --eval=pairs.txt', 'is not finite'),
  Case('evaluate --vectors=absent --eval=pairs.txt', 'absent'),
  Case('merge run text.txt --output=merged', 'no word2vec file'),
  Case('merge run other.bin --output=merged', 'nothing to align on'),
  Case('merge run other.bin --output=merged --method=concat',
       'no word is in all'),
  Case('merge run nan.bin --output=merged', 'not finite'),
  Case('merge run zeros.bin --output=merged', 'all its'),
  Case('merge run ab.bin --output=merged --dim=900', 'is impossible'),
  Case('merge run ab.bin --output=merged --dim=-1', '--dim must be'),
  Case('merge run ab.bin --output=merged --method=pca --start=pca',
       'is not used with'),
  Case('merge run ab.bin --output=merged --trainable --method=pca',
       '--trainable wants'),
  Case('merge run ab.bin --output=merged --trainable', 'no context vectors'),
  Case('merge run absent --output=merged --skip_bad', 'nothing to merge'),
  Case('merge run ab.bin --output=merged --tolerance=-1', '--tolerance must'),
  Case('merge run ab.bin --output=merged --weights=some', 'invalid choice'),
  Case('merge run ab.bin --output=text.txt/x', 'give another --output'),
  Case('merge run ab.bin --output=merged --max_iterations=0', '1 or more'),
  Case('merge run ab.bin --output=merged --align_words=-1', '0 or more'),
  Case('merge run ab.bin --output=merged --method=pca --no-restore',
       '--no-restore is not used'),
  Case('merge run ab.bin --output=second', 'is the folder of a run'),
  Case('merge run ctr --output=merged', 'ctr is a click model'),
  Case('merge run empty --output=merged', 'empty'),
)  # fmt: skip
# Settings that differ from those of the folder's run, or data that does.
_RESUMED = (
  _again('run', 'model.dim (8 there, 9 now)', '--config.model.dim=9'),
  _again('run', 'model.name', '--config.model.name=cbow'),
  _again('run', 'strategy.name', '--config.strategy.name=sync'),
  _again('run', 'optimizer.name', '--config.optimizer.name=adagrad'),
  _again('run', 'table.dtype', '--config.table.dtype=bfloat16'),
  _again('run', 'seed (1 there', '--config.seed=2'),
  _again('run', 'the text is not the one', '--config.data.path=sets.txt'),
  _again('run', 'train.epochs', '--config.train.epochs=9'),
  _again('run', 'table.store', '--config.table.store=memory'),
  _again(
    'run', 'data.lowercase (True there, False now)', '--config.data.lowercase=0'
  ),
  _again('other_step', 'can be read', ''),
  _again('no_record', 'checkpoints', ''),
)
# In Python.
_PYTHON = (
  _python('jaxemb.load("absent")', 'absent'),
  _python('jaxemb.load("text.txt")', 'no word2vec file'),
  _python('jaxemb.load("")', ''),
  _python('jaxemb.load("run").most_similar("nowhere")', 'no vector for'),
  _python('jaxemb.load("run")["nowhere"]', 'no vector for'),
  _python('jaxemb.load("run")[10**6]', 'no vector for'),
  _python('jaxemb.load("run").disambiguate(["aa0"], 5)', 'outside'),
  _python(
    'jaxemb.load("run").evaluate_word_pairs("text.txt")', 'is no benchmark of'
  ),
  _python('jaxemb.load("run").evaluate_word_pairs("absent")', 'absent'),
  _python('jaxemb.load("run").save("text.txt")', 'text.txt'),
  _python(
    'jaxemb.load("run").save_word2vec_format("text.txt/x.bin")', 'text.txt'
  ),
  _python('jaxemb.train("text.txt", dim=0)', 'at least 1'),
  _python('jaxemb.train("text.txt", dim="8")', 'of type int'),
  _python('jaxemb.train("absent.txt")', 'does not exist'),
  _python('jaxemb.train(5)', 'sentences must be'),
  _python('jaxemb.train(None)', 'sentences must be'),
  _python('jaxemb.train([])', 'at least one'),
  _python('jaxemb.train([b"bytes"])', 'sentences must be'),
  _python('jaxemb.train(["a b"], settings={"model.dmi": 3})', 'did you mean'),
  _python('jaxemb.train(["a b"], settings={"model.dim": 3.5})', 'of type int'),
  _python(
    'jaxemb.train(["a b", "b a"], min_count=1, workdir="text.txt")',
    'as the folder of a run',
  ),
)
_SHELL = (
  _shell(f'JAX_PLATFORMS=cuda {_train()}', "JAX_PLATFORMS='cuda'"),
  # JAX's own line and code.
  _shell(f'XLA_FLAGS=--xla_absent=1 {_train()}', 'Unknown flag', 1),
  _shell(f'mkfifo fifo && {_train()} --config.eval.paths=fifo',
         'no benchmark file'),
  _shell('mkfifo pipe && $JAXEMB query --vectors=pipe a', 'is a pipe'),
  _shell('$JAXEMB query --vectors=run aa0 > /dev/full', 'cannot write the out'),
  _shell('$JAXEMB query --vectors=run aa0 >&- 2>&-', '', 0),
  _shell(f'{_train(workdir="closed")} >&- 2>&- && cat closed/log.txt',
         'results in closed', 0),
  _shell('PYTHONIOENCODING=ascii $JAXEMB query --vectors=run größe', r'gr\xf6'),
  _shell('PYTHONIOENCODING=ascii $JAXEMB query --vectors=umlaut.txt ab',
         r'gr\xf6', 0),
  _shell(f"{_train(workdir='x')} --workdir=$(printf 'y\\xff')", 'in UTF-8'),
  _shell(f"{_train(path='x')} --config.data.path=$(printf 'y\\xff')",
         'does not exist'),
  _shell(f'ulimit -f 20; {_train(workdir="large")}', 'File too large'),
  _shell(f'ulimit -v 1500000; {_train()}', 'ulimit -v'),
)  # fmt: skip
# Files of a run, what is written over them, and what then happens to it.
_DAMAGED = (
  ('metrics.jsonl', b'\xff\x00junk', 'resuming', 0),
  ('metrics.jsonl', b'', 'resuming', 0),
  ('config.json', b'\xff\x00junk', 'does not hold the settings', 2),
  ('config.json', b'[]', 'does not hold the settings', 2),
  ('log.txt', b'\xff\x00junk', 'resuming', 0),
)
CASES = (
  *_TEXTS, *_SETTINGS, *_COMMANDS, *_CLICKS, *_GRAPHS, *_NODES, *_INTERACTIONS,
  *_PLACES, *_OTHERS, *_RESUMED, *_PYTHON,
)  # fmt: skip
IN_SHELL = _SHELL


def write_files(folder: pathlib.Path) -> None:
  """Writes what the cases name, and trains one small run there."""
  rng = np.random.default_rng(0)
  words = [f'aa{i}' for i in range(60)]
  lines = [' '.join(rng.choice(words, 12)) for _ in range(400)]
  text = '\n'.join(lines).encode() + b'\n'
  german = 'die größe der straße über dem fluss\n' * 200
  packed = gzip.compress(text)
  archive = io.BytesIO()
  with tarfile.open(fileobj=archive, mode='w') as tar:
    info = tarfile.TarInfo('text.txt')
    info.size = len(text)
    tar.addfile(info, io.BytesIO(text))
  zipped = io.BytesIO()
  with zipfile.ZipFile(zipped, 'w') as file:
    file.writestr('text.txt', text)
    file.writestr('other.txt', text)
  rows = np.ones((4, 20), '<f4')
  pairs = [b'%c %b\n' % (97 + i, x.tobytes()) for i, x in enumerate(rows)]
  files = {
    'text.txt': text,
    'empty.txt': b'',
    'punctuation.txt': b'... !? --\n' * 100,
    'chinese.txt': '這是一個沒有空格的句子\n'.encode() * 50,
    'one_line.txt': '這是一個沒有空格的句子'.encode() * 500,
    'latin.txt': german.encode('latin-1'),
    'cyrillic.txt': ('мама мыла раму\n' * 200).encode('cp1251'),
    'utf16.txt': german.encode('utf-16'),
    'binary.txt': rng.bytes(5000),
    'two.zip': zipped.getvalue(),
    'archive.txt': archive.getvalue(),
    'twice.gz': gzip.compress(packed),
    'cut.gz': packed[: len(packed) // 2],
    'cut.xml': b'<mediawiki><page><title>x</title>\n' + text[:300],
    'one_word.txt': b'word ' * 100,
    'other.txt': b'elsewhere 7\nnowhere 5\n',
    'raises.py': b'\nraise KeyError(3)\n',
    'exits.py': b'import sys; sys.exit(3)\n',
    'junk.py': rng.bytes(100),
    'nothing.py': b'',
    'cut.bin': b'9 20\n' + b''.join(pairs),
    'ten.bin': b'4 10\n' + b''.join(pairs),
    'header.txt': b'0 5\n',
    'umlaut.txt': 'ab 1 2\ngröße 1 1\n'.encode(),
    'of_junk/config.json': b'\xff\x00junk',
    **_of_clicks(packed),
    **_of_graphs(),
    **_of_vectors(rows),
  }
  for name, data in files.items():
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
  (folder / 'empty').mkdir()
  (folder / 'links').mkdir()
  for name in ('link.txt', 'links/to.txt'):
    (folder / name).symlink_to('nowhere')
  (folder / 'loop').symlink_to('loop')
  log = _started('ctr:smoke', 'clicks.csv', '', 'train.patience=0')
  for case in (
    _good('run'),
    log._replace(command=log.command.replace('bad', 'ctr')),
  ):
    code, said = run(case, folder)
    if code:
      raise AssertionError(said)
  shutil.copytree(folder / 'run', folder / 'second')
  for name, file in ('cut_ctr', 'model.json'), ('cut_dense', 'dense.npz'):
    shutil.copytree(folder / 'ctr', folder / name)
    for path in (folder / name).rglob(file):
      path.write_text('{}' if file == 'model.json' else 'PK\3\4')
  for name in 'other_step', 'no_record':
    shutil.copytree(folder / 'run', folder / name)
    for path in (folder / name / 'checkpoints').rglob('*'):
      if path.is_file() and (name == 'other_step' or 'record' in path.parts):
        path.write_bytes(b'junk')


def _of_clicks(packed: bytes) -> dict[str, bytes]:
  """Logs that are wrong, and `clicks.csv`, which is right."""
  rng = np.random.default_rng(0)
  rows = [
    f'{rng.integers(2)},shop{rng.integers(9)},{rng.integers(1000) / 100}'
    for _ in range(300)
  ]
  header = 'click,shop,day'
  right = '\n'.join([header, *rows]) + '\n'
  lines = [f'{x[0]} {i % 7}:1 {10 + i % 5}:1' for i, x in enumerate(rows)]
  table = io.BytesIO()
  parquet.write_table(pa.table({'click': [0, 1], 'shop': ['a', 'b']}), table)
  files = {
    'clicks.csv': right,
    'only_header.csv': header + '\n',
    'no_label.csv': right.replace('click', 'what'),
    'no_shop.csv': '\n'.join(['click,day', *(x[:1] + ',1.5' for x in rows)]),
    'twice.csv': right.replace('shop', 'day', 1),
    'gap.csv': right.replace('shop', '', 1),
    'ragged.csv': right.replace(',shop1', '').replace(',shop2', ''),
    'bad.libsvm': '\n'.join(lines).replace(':', ';'),
    'no_label.libsvm': '\n'.join(x[2:] for x in lines),
  }
  return {k: x.encode() for k, x in files.items()} | {
    'empty.csv': b'',
    'binary.csv': rng.bytes(5000),
    'latin.csv': right.replace('shop', 'größe').encode('latin-1'),
    'cr.csv': right.replace('\n', '\r').encode(),
    'rows.jsonl': b'{"click": 1, "shop": "a"}\n' * 99,
    'rows.json': b'[\n' + b'{"click": 1, "shop": "a"},\n' * 99 + b']',
    # Beyond what its encoding is guessed by.
    'late.csv': right.encode()
    + b'1,shop,1.5\n' * 9_000
    + b'1,gr\xf6\xdfe,1\n' * 999,
    'mixed.csv': right.replace('shop1', 'größe').encode() + b'1,gr\xf6,1\n' * 9,
    'bad.parquet': rng.bytes(1000),
    'cut.parquet': table.getvalue()[:-20],
    'cut.csv.gz': gzip.compress(right.encode())[:-30],
  }


def _of_graphs() -> dict[str, bytes]:
  """Graphs that are wrong, and `edges.tsv`, `labels.tsv`, `sets.txt`."""
  rng = np.random.default_rng(0)
  pairs = rng.integers(0, 90, (400, 2)).tolist()
  pairs = [(a, b) for a, b in pairs if a != b]

  def lines(*more):
    return '\n'.join('\t'.join([f'n{a}', f'n{b}', *more]) for a, b in pairs)

  nodes = [f'n{i}' for i in range(90)]
  found = {
    'edges.tsv': lines(),
    'one_column.tsv': '\n'.join(nodes),
    'loops.tsv': '\n'.join(f'{x}\t{x}' for x in nodes),
    'many_columns.tsv': lines('1', 'a', '2', 'b'),
    'no_weight.tsv': lines('heavy'),
    'negative.tsv': lines('-2'),
    'nan.tsv': lines('nan'),
    'times.tsv': lines('1577836800'),
    'relations.tsv': lines('likes'),
    'elsewhere.tsv': 'x1\tx2\nx2\tx3\n',
    'labels.tsv': '\n'.join(f'{x}\tl{i % 3}' for i, x in enumerate(nodes)),
    'no_numbers.tsv': '\n'.join(f'{x}\tmany' for x in nodes),
    'ragged.tsv': '\n'.join(
      f'{x}' + '\t1' * (1 + i % 2) for i, x in enumerate(nodes)
    ),
    'ratings.txt': '\n'.join(f'{a} {b} 3.5 964982703' for a, b in pairs),
    'triples.txt': '\n'.join(f'u{a} i{b} {1 + a % 5}' for a, b in pairs),
    'stars.csv': '\n'.join(
      ['user,item,stars', *(f'{a},{b},{1 + a % 5}' for a, b in pairs)]
    ),
    'titles.tsv': '\n'.join(f'u{a}\tThe Item {b}' for a, b in pairs),
    'sets_folder/a.txt': 'u1 i1\n',
    'sets_folder/b.txt': 'u1 i1\n',
    'sets.txt': '\n'.join(f'u{i} i{i % 7} i{i % 11}' for i in range(60)),
    'pairs.txt': 'aa0 aa1 3.5\naa2 aa3 1.5\naa4 aa5 2\naa6 aa7 1\n' * 3,
    'bad_pairs.txt': 'aa0 aa1\naa2 aa3\n',
  }
  oblong = io.BytesIO()
  sparse.save_npz(oblong, sparse.csr_matrix(np.ones((3, 4))))
  return {k: x.encode() for k, x in found.items()} | {
    'bad.npz': rng.bytes(500),
    'bad.mat': rng.bytes(500),
    'bad.npy': rng.bytes(500),
    'ones.npy': _npy(np.ones((3, 4))),
    'one_nan.npy': _npy(np.where(np.arange(90)[:, None] == 7, np.nan, [[1.0]])),
    'none.npy': _npy(np.ones((90, 0))),
    'oblong.npz': oblong.getvalue(),
    'cr.tsv': lines().replace('\n', '\r').encode(),
    'late.tsv': (lines() + '\n').encode() * 40
    + b'gr\xf6\xdfe\tstra\xdfe\n' * 999,
    'latin_sets.txt': found['sets.txt'].replace('i1', 'größe').encode('cp1252'),
    'ogb/raw/num-node-list.csv.gz': gzip.compress(b'5\n'),
  }


def _of_vectors(rows: np.ndarray) -> dict[str, bytes]:
  """Vectors that are wrong, alone and in exports; [4, 20] right ones."""
  words = [f'aa{i}' for i in range(4)]

  def binary(rows, words=words):
    parts = [
      b'%b %b\n' % (w.encode(), x.tobytes())
      for w, x in zip(words, rows, strict=True)
    ]
    return b'%d %d\n' % rows.shape + b''.join(parts)

  vocab = ''.join(f'{x} 5\n' for x in words).encode()
  text = '4 2\n' + ''.join(f'{x} 1 2\n' for x in words)
  exports = {
    'no_vocab': {'vectors.npy': _npy(rows)},
    'no_rows': {'vectors.npy': b'junk', 'vocab.txt': vocab},
    'short_vocab': {'vectors.npy': _npy(rows), 'vocab.txt': vocab[:12]},
    'complex': {'vectors.npy': _npy(rows + 1j), 'vocab.txt': vocab},
    'no_scales': {
      'vectors.npy': _npy(rows.astype(np.int8)),
      'vocab.txt': vocab,
    },
    'junk_vocab': {'vectors.npy': _npy(rows), 'vocab.txt': b'aa0 many\n'},
    'twice_vocab': {'vectors.npy': _npy(rows), 'vocab.txt': vocab[:6] * 4},
  }
  found = {
    f'{k}/export/{name}': data
    for k, files in exports.items()
    for name, data in files.items()
  }
  random = np.random.default_rng(0).normal(size=rows.shape).astype('<f4')
  return found | {
    'other.bin': binary(random, ['x', 'y', 'z', 'w']),
    'ab.bin': binary(random),
    'nan.bin': binary(rows * np.float32(np.nan)),
    'zeros.bin': binary(rows * 0),
    'ragged_vectors.txt': text.replace('aa2 1 2', 'aa2 1').encode(),
    'words_for_numbers.txt': text.replace('aa2 1 2', 'aa2 one 2').encode(),
    'infinite.txt': text.replace('aa2 1', 'aa2 1e400').encode(),
    'cut_vectors.gz': gzip.compress(text.encode() * 50)[:-40],
  }


def _npy(array: np.ndarray) -> bytes:
  file = io.BytesIO()
  np.save(file, array)
  return file.getvalue()


def _good(workdir: str) -> Case:
  return Case(f'{_SMALL.format(workdir)} --config.data.path=text.txt', '', 0)


def run(case: Case, folder: pathlib.Path) -> tuple[int, str]:
  """The exit code of a case in a folder, and what it has said."""
  shutil.rmtree(folder / 'bad', ignore_errors=True)  # of the case before
  if case.in_shell:
    program = f'{sys.executable} -m jaxemb'
    path = os.pathsep.join([str(_ROOT), *sys.path])
    environment = {'JAXEMB': program, 'PYTHONPATH': path}
    environment['JAX_PLATFORMS'] = 'cpu'
    done = subprocess.run(
      ['bash', '-c', case.command],
      cwd=folder,
      env=os.environ | environment,
      capture_output=True,
      timeout=120,
    )
    said = (done.stdout + done.stderr).decode(errors='replace')
    return done.returncode, said
  output = io.StringIO()
  with (
    contextlib.chdir(folder),
    contextlib.redirect_stdout(output),
    contextlib.redirect_stderr(output),
  ):
    arguments = [x.strip("'") for x in case.command.split()]
    try:
      if case.in_python:
        code = process.exit_code(lambda: eval(case.command) and None)
      else:
        code = door.main(arguments)
    except SystemExit as end:  # of argparse
      code = end.code
  return code, output.getvalue()


def problem(case: Case, code: int, said: str) -> str:
  """What is wrong with an answer, or ''."""
  if 'Traceback' in said:
    return 'a traceback'
  if code != case.code:
    return f'exit code {code}, not {case.code}'
  if case.says not in re.sub(r'\s+', ' ', said):
    return f'no {case.says!r}'
  lines = re.findall('^jaxemb: (?!warning:)', said, re.M)
  return 'several lines of its own' if len(lines) > 1 else ''


def damaged(folder: pathlib.Path) -> list[Case]:
  """A copy of the run with a damaged file for each case; its next starts."""
  cases = []
  for i, (name, data, says, code) in enumerate(_DAMAGED):
    shutil.copytree(folder / 'run', folder / f'run{i}')
    (folder / f'run{i}' / name).write_bytes(data)
    cases.append(_good(f'run{i}')._replace(says=says, code=code))
  return cases
